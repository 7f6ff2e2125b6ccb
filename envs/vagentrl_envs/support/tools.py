"""The agent's tools. Each is a frozen class whose fields are its arguments.

A tool checks that a call makes sense, not that the policy allows it: see `policy`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from vagentrl_envs.support.calls import Call, write_call
from vagentrl_envs.support.phone import World
from vagentrl_envs.support.records import PLANS, TOP_UPS, Bill, Line, plan_named

REASONS = ("fraud", "refund", "identity", "cancel")
"""Why a case may be handed to a person."""
SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


class ToolError(Exception):
    """A call cannot be carried out; the text says why, and is shown to the agent."""


@dataclass(frozen=True)
class Result:
    """What a tool did.

    Attributes:
        world: The world afterwards.
        text: What the agent is told.
    """

    world: World
    text: str


class Tool(ABC):
    """A tool with its arguments.

    Attributes:
        name: Name of the tool in a call.
        about: What the agent is told about the tool.
        writes: Whether it changes the database.
        open_to_all: Whether it may be called before the caller is verified.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    writes: ClassVar[bool] = False
    open_to_all: ClassVar[bool] = False

    @abstractmethod
    def run(self, world: World) -> Result:
        """Carry out the call.

        Raises:
            ToolError: When it cannot be carried out. Nothing has changed then.
        """

    def account(self, world: World) -> str | None:
        """Id of the customer whose records the call reads or changes; None for nobody's."""
        return None

    @property
    def call(self) -> str:
        """The call as the agent would write it."""
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore
        shown = {name: _shown(value) for name, value in arguments.items()}
        return write_call(self.name, shown)

    @classmethod
    def signature(cls) -> str:
        """Name and arguments, as the agent is told them."""
        return f"{cls.name}({', '.join(field.name for field in fields(cls))})"  # pyright: ignore


class _LineTool(Tool):
    line: str

    def account(self, world: World) -> str | None:
        return self._line(world).customer

    def _line(self, world: World) -> Line:
        line = world.database.line(self.line)
        if line is None:
            raise ToolError("there is no line with this number")
        return line


class _BillTool(Tool):
    bill: str

    def account(self, world: World) -> str | None:
        return self._bill(world).customer

    def _bill(self, world: World) -> Bill:
        bill = world.database.bill(self.bill)
        if bill is None:
            raise ToolError("there is no bill with this id")
        return bill


# ----------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class FindCustomer(Tool):
    number: str
    name = "find_customer"
    about = "the account of a telephone number"
    open_to_all = True

    def run(self, world: World) -> Result:
        line = world.database.line(self.number)
        customer = world.database.customer(line.customer) if line else None
        if customer is None:
            raise ToolError("no account has this number")
        numbers = ", ".join(one.number for one in world.database.lines_of(customer.id))
        return Result(world, f"customer {customer.id}, {customer.name}, lines {numbers}")


@dataclass(frozen=True)
class Verify(Tool):
    customer: str
    pin: str
    name = "verify"
    about = "check the PIN that the caller gave; two attempts"
    open_to_all = True

    def run(self, world: World) -> Result:
        customer = world.database.customer(self.customer)
        if customer is None:
            raise ToolError("there is no customer with this id")
        if self.pin != customer.pin:
            raise ToolError("the PIN is wrong")
        return Result(world, f"customer {customer.id} is verified")


@dataclass(frozen=True)
class GetLine(_LineTool):
    line: str
    name = "get_line"
    about = "plan, status, data and contract of a line"

    def run(self, world: World) -> Result:
        line = self._line(world)
        hold = f" ({line.hold})" if line.hold else ""
        return Result(
            world,
            f"line {line.number}: plan {line.plan}, {line.status}{hold}, "
            f"roaming {'on' if line.roaming else 'off'}, used {line.used_gb} of "
            f"{line.limit_gb} GB, {'' if line.registered else 'not '}registered, "
            f"bound until {line.bound_until}",
        )


@dataclass(frozen=True)
class GetBills(Tool):
    customer: str
    name = "get_bills"
    about = "the customer's bills"

    def account(self, world: World) -> str | None:
        return self.customer

    def run(self, world: World) -> Result:
        if world.database.customer(self.customer) is None:
            raise ToolError("there is no customer with this id")
        bills = world.database.bills_of(self.customer)
        return Result(world, "; ".join(map(_describe, bills)) or "no bills")


@dataclass(frozen=True)
class ListPlans(Tool):
    name = "list_plans"
    about = "all plans and top-ups with their prices"
    open_to_all = True

    def run(self, world: World) -> Result:
        plans = ", ".join(f"{plan.name} {plan.gb} GB ${plan.price}" for plan in PLANS)
        top_ups = ", ".join(f"{gb} GB ${price}" for gb, price in TOP_UPS.items())
        return Result(world, f"plans: {plans}; top-ups: {top_ups}")


# ----------------------------------------------------------------------------------------- writing


@dataclass(frozen=True)
class SetRoaming(_LineTool):
    line: str
    on: bool
    name = "set_roaming"
    about = "allow (on=true) or stop (on=false) networks abroad"
    writes = True

    def run(self, world: World) -> Result:
        line = replace(self._line(world), roaming=self.on)
        return _wrote(world, line, f"roaming of {line.number} is {'on' if self.on else 'off'}")


@dataclass(frozen=True)
class RegisterLine(_LineTool):
    line: str
    name = "register_line"
    about = "register a line's SIM card; the phone must be restarted afterwards"
    writes = True

    def run(self, world: World) -> Result:
        line = self._line(world)
        if line.registered:
            raise ToolError("the line is registered already")
        result = _wrote(world, replace(line, registered=True), f"{line.number} is registered")
        return _must_restart(result, line)


@dataclass(frozen=True)
class AddData(_LineTool):
    line: str
    gb: int
    name = "add_data"
    about = "book a top-up for this month"
    writes = True

    def run(self, world: World) -> Result:
        line = self._line(world)
        if self.gb not in TOP_UPS:
            raise ToolError("there is no such top-up; see list_plans")
        new = replace(line, extra_gb=line.extra_gb + self.gb)
        return _wrote(world, new, f"{line.number} has {self.gb} GB more")


@dataclass(frozen=True)
class ChangePlan(_LineTool):
    line: str
    plan: str
    name = "change_plan"
    about = "move a line to another plan"
    writes = True

    def run(self, world: World) -> Result:
        line = self._line(world)
        if plan_named(self.plan) is None:
            raise ToolError("there is no such plan; see list_plans")
        if line.plan == self.plan:
            raise ToolError("the line has this plan already")
        return _wrote(world, replace(line, plan=self.plan), f"{line.number} has plan {self.plan}")


@dataclass(frozen=True)
class ResumeLine(_LineTool):
    line: str
    name = "resume_line"
    about = "lift a suspension; the phone must be restarted afterwards"
    writes = True

    def run(self, world: World) -> Result:
        line = self._line(world)
        if line.status == "active":
            raise ToolError("the line is active already")
        new = replace(line, status="active", hold="")
        return _must_restart(_wrote(world, new, f"{line.number} is active"), line)


@dataclass(frozen=True)
class RequestPayment(_BillTool):
    bill: str
    name = "request_payment"
    about = "send the customer a payment request for an overdue bill; one at a time"
    writes = True

    def run(self, world: World) -> Result:
        bill = self._bill(world)
        if bill.status != "overdue":
            raise ToolError("the bill is not overdue")
        others = world.database.bills_of(bill.customer)
        if any(other.status == "requested" for other in others):
            raise ToolError("another request is still open")
        database = world.database.with_bill(replace(bill, status="requested"))
        return Result(replace(world, database=database), f"request for {bill.id} sent")


@dataclass(frozen=True)
class Credit(_BillTool):
    bill: str
    amount: int
    name = "credit"
    about = "give dollars of a bill back"
    writes = True

    def run(self, world: World) -> Result:
        bill = self._bill(world)
        if bill.credit:
            raise ToolError("this bill has a credit already")
        if not 0 < self.amount <= bill.total:
            raise ToolError("the amount must be above 0 and not above the bill's total")
        database = world.database.with_bill(replace(bill, credit=self.amount))
        return Result(replace(world, database=database), f"${self.amount} of {bill.id} credited")


# ------------------------------------------------------------------------------------ ending a case


@dataclass(frozen=True)
class Close(Tool):
    name = "close"
    about = "end the conversation when everything is done"
    open_to_all = True

    def run(self, world: World) -> Result:
        return Result(world, "the case is closed")


@dataclass(frozen=True)
class Transfer(Tool):
    reason: str
    name = "transfer"
    about = f"hand the case to a person; reason is one of {', '.join(REASONS)}"
    open_to_all = True

    def run(self, world: World) -> Result:
        if self.reason not in REASONS:
            raise ToolError(f"reason is one of {', '.join(REASONS)}")
        return Result(replace(world, transferred=self.reason), "the case is transferred")


TOOLS: dict[str, type[Tool]] = {
    tool.name: tool
    for tool in (
        FindCustomer, Verify, GetLine, GetBills, ListPlans, SetRoaming, RegisterLine, AddData,
        ChangePlan, ResumeLine, RequestPayment, Credit, Close, Transfer,
    )
}  # fmt: skip


def build(call: Call, known: Mapping[str, type[Tool]] = TOOLS) -> Tool:
    """The tool of a call, with its arguments in their types.

    Raises:
        ToolError: When there is no such tool, or its arguments are others.
    """
    tool = known.get(call.name)
    if tool is None:
        raise ToolError(f"there is no such tool; the tools are {', '.join(known)}")
    wanted = {field.name: field.type for field in fields(tool)}  # pyright: ignore
    if set(call.arguments) != set(wanted):
        raise ToolError(f"wrong arguments; call {tool.signature()}")
    typed = {name: _typed(name, call.arguments[name], type) for name, type in wanted.items()}
    return tool(**typed)


def _typed(name: str, text: str, type: Any) -> str | int | bool:
    match type:
        case "bool":
            if text.casefold() not in SWITCH:
                raise ToolError(f"{name} is true or false")
            return SWITCH[text.casefold()]
        case "int":
            if not re.fullmatch(r"[0-9]{1,6}", text):
                raise ToolError(f"{name} is a whole number")
            return int(text)
        case _:
            return text


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrote(world: World, line: Line, text: str) -> Result:
    return Result(replace(world, database=world.database.with_line(line)), text)


def _must_restart(result: Result, line: Line) -> Result:
    """The result, after which the telephone of this line waits for a restart."""
    world = result.world
    if line.number != world.number:
        return result
    return replace(result, world=world.with_phone(replace(world.phone, stale=True)))


def _describe(bill: Bill) -> str:
    charges = ", ".join(f"{charge.what} ${charge.amount}" for charge in bill.charges)
    credited = f", credited ${bill.credit}" if bill.credit else ""
    return f"bill {bill.id} of {bill.month}: ${bill.total}, {bill.status}{credited} ({charges})"
