"""Draws the records that a task starts from: a customer with a line, and other customers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vagentrl_envs.support.records import (
    PLANS,
    TODAY,
    Bill,
    Charge,
    Customer,
    Database,
    Line,
    Plan,
    months_before,
    plan_named,
)

GIVEN = (
    "Ada", "Bruno", "Carla", "Dmitri", "Elif", "Femi", "Greta", "Hugo", "Ines", "Jonas", "Kira",
    "Luca", "Mina", "Nils", "Olga", "Pavel", "Rosa", "Sami", "Tara", "Umar", "Vera", "Wim", "Yara",
    "Zeno",
)  # fmt: skip
SURNAMES = (
    "Abel", "Brandt", "Costa", "Dahl", "Eriksen", "Fischer", "Gomez", "Haas", "Ivanov", "Jansen",
    "Keller", "Lund", "Moreau", "Novak", "Okoye", "Peters", "Quist", "Rossi", "Silva", "Toth",
    "Ueda", "Vidal", "Weber", "Ziegler",
)  # fmt: skip
EXTRAS = ("calls abroad", "insurance", "music service", "paper bill", "premium text")
MONTHS = tuple(months_before(TODAY, count) for count in (2, 1, 0))
"""The months that have a bill, oldest first."""


@dataclass(frozen=True)
class Caller:
    """The customer of a task, with the line that the call is about."""

    customer: Customer
    line: Line
    bills: tuple[Bill, ...]
    others: Database

    def database(self, line: Line | None = None, bills: tuple[Bill, ...] | None = None) -> Database:
        """All records, with the caller's line and bills replaced where others are given."""
        return Database(
            tuple(sorted((self.customer, *self.others.customers), key=lambda one: one.id)),
            tuple(sorted((line or self.line, *self.others.lines), key=lambda one: one.number)),
            tuple(sorted((*(bills or self.bills), *self.others.bills), key=lambda one: one.id)),
        )


def draw_caller(rng: np.random.Generator, plan: str | None = None) -> Caller:
    """Draw a caller and two other customers; `plan` fixes the plan of the caller's line."""
    ids = [f"C{number}" for number in 100 + rng.permutation(900)[:3]]
    numbers = [str(number) for number in _distinct(rng, 7_000_000, 7_999_999, 4)]
    bill_ids = [f"B{number}" for number in _distinct(rng, 1000, 9999, 9)]
    customers = [Customer(id, _name(rng), f"{rng.integers(10_000):04d}") for id in ids]
    lines = [
        Line(number, owner.id, _plan(rng).name, used_gb=1)
        for number, owner in zip(numbers, [customers[0], *customers], strict=True)
    ]
    if plan is not None:
        lines[0] = Line(numbers[0], ids[0], plan, used_gb=1)
    if rng.random() < 0.5:  # half of the callers have a second line
        del lines[1]
    bills = [
        _bill(rng, bill_ids[3 * index + month], owner.id, lines[index].plan, MONTHS[month])
        for index, owner in enumerate(customers)
        for month in range(3)
    ]
    others = Database(tuple(customers[1:]), tuple(lines[1:]), tuple(bills[3:]))
    return Caller(customers[0], lines[0], tuple(bills[:3]), others)


def _distinct(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    found: dict[int, None] = {}
    while len(found) < count:
        found[int(rng.integers(low, high))] = None
    return list(found)


def _name(rng: np.random.Generator) -> str:
    return f"{GIVEN[rng.integers(len(GIVEN))]} {SURNAMES[rng.integers(len(SURNAMES))]}"


def _plan(rng: np.random.Generator) -> Plan:
    return PLANS[rng.integers(len(PLANS))]


def _bill(rng: np.random.Generator, id: str, customer: str, plan: str, month: str) -> Bill:
    found = plan_named(plan)
    price = found.price if found else 0
    chosen = sorted(rng.permutation(len(EXTRAS))[: rng.integers(3)])
    extras = (Charge(EXTRAS[index], int(rng.integers(2, 30))) for index in chosen)
    status = "due" if month == TODAY else "paid"
    return Bill(id, customer, month, status, (Charge("plan", price), *extras))
