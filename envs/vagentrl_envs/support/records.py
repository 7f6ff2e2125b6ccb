"""The records of the telephone company: customers, lines, bills and plans.

Everything is frozen. A tool returns a new database, so that two states can be compared with ``==``
and an oracle can try actions without side effects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

TODAY = "2026-03"
"""The current month in every episode."""

LineStatus = Literal["active", "suspended"]
Hold = Literal["", "unpaid", "fraud"]
BillStatus = Literal["paid", "due", "overdue", "requested"]


@dataclass(frozen=True)
class Plan:
    """A plan; `gb` and `price` are gigabytes and dollars a month."""

    name: str
    gb: int
    price: int


PLANS = (Plan("S", 3, 11), Plan("M", 12, 19), Plan("L", 45, 31), Plan("XL", 160, 47))
TOP_UPS = {2: 6, 5: 13}
"""Price in dollars of a top-up, by its gigabytes."""
LARGEST_CREDIT = 40
"""Most dollars of a bill that the agent may give back; above that a person decides."""


def plan_named(name: str) -> Plan | None:
    return next((plan for plan in PLANS if plan.name == name), None)


@dataclass(frozen=True)
class Customer:
    """An account holder; `pin` proves who is calling."""

    id: str
    name: str
    pin: str


@dataclass(frozen=True)
class Line:
    """A telephone number with its plan.

    Attributes:
        number: The telephone number, digits only.
        customer: Id of the account that the line belongs to.
        plan: Name of the plan.
        status: Whether the line may use the network.
        hold: Why the line is suspended; empty while it is active.
        roaming: Whether the company lets the line use networks abroad.
        used_gb: Data used this month.
        extra_gb: Data bought on top of the plan this month.
        registered: Whether the network knows the line's SIM card.
        bound_until: Last month of the contract, as ``YYYY-MM``.
    """

    number: str
    customer: str
    plan: str
    status: LineStatus = "active"
    hold: Hold = ""
    roaming: bool = False
    used_gb: int = 0
    extra_gb: int = 0
    registered: bool = True
    bound_until: str = "2025-12"

    @property
    def limit_gb(self) -> int:
        plan = plan_named(self.plan)
        return (plan.gb if plan else 0) + self.extra_gb


@dataclass(frozen=True)
class Charge:
    """One position of a bill, in dollars."""

    what: str
    amount: int


@dataclass(frozen=True)
class Bill:
    """A month's bill; `credit` is what was given back, in dollars."""

    id: str
    customer: str
    month: str
    status: BillStatus
    charges: tuple[Charge, ...]
    credit: int = 0

    @property
    def total(self) -> int:
        return sum(charge.amount for charge in self.charges)

    def doubled(self) -> Charge | None:
        """The charge that stands on the bill more than once; None if there is none."""
        return next((one for one in self.charges if self.charges.count(one) > 1), None)


@dataclass(frozen=True)
class Database:
    """All records."""

    customers: tuple[Customer, ...]
    lines: tuple[Line, ...]
    bills: tuple[Bill, ...]

    def customer(self, id: str) -> Customer | None:
        return next((one for one in self.customers if one.id == id), None)

    def line(self, number: str) -> Line | None:
        return next((one for one in self.lines if one.number == number), None)

    def bill(self, id: str) -> Bill | None:
        return next((one for one in self.bills if one.id == id), None)

    def lines_of(self, customer: str) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.customer == customer)

    def bills_of(self, customer: str) -> tuple[Bill, ...]:
        return tuple(bill for bill in self.bills if bill.customer == customer)

    def overdue(self, customer: str) -> tuple[Bill, ...]:
        """Bills that are overdue, also those for which payment was requested."""
        open_ones = ("overdue", "requested")
        return tuple(bill for bill in self.bills_of(customer) if bill.status in open_ones)

    def with_line(self, new: Line) -> Database:
        """The database with the line of this number replaced."""
        lines = tuple(new if one.number == new.number else one for one in self.lines)
        return replace(self, lines=lines)

    def with_bill(self, new: Bill) -> Database:
        """The database with the bill of this id replaced."""
        bills = tuple(new if one.id == new.id else one for one in self.bills)
        return replace(self, bills=bills)


def months_before(month: str, count: int) -> str:
    """The month that lies `count` months earlier; both are ``YYYY-MM``."""
    index = int(month[:4]) * 12 + int(month[5:]) - 1 - count
    return f"{index // 12:04d}-{index % 12 + 1:02d}"
