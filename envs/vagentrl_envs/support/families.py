"""The families of tasks: each draws a case and knows how it should end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from vagentrl_envs.support.cast import EXTRAS, MONTHS, Caller, draw_caller
from vagentrl_envs.support.phone import Phone, World, operate
from vagentrl_envs.support.records import (
    LARGEST_CREDIT,
    PLANS,
    TODAY,
    TOP_UPS,
    Bill,
    Charge,
    Line,
    Plan,
    months_before,
    plan_named,
)
from vagentrl_envs.support.tasks import PERSONAS, Family, Task, solved
from vagentrl_envs.support.tools import (
    AddData,
    ChangePlan,
    Credit,
    RegisterLine,
    RequestPayment,
    ResumeLine,
    SetRoaming,
    Tool,
)

DEVICE_FAULTS: dict[str, Callable[[Phone], Phone]] = {
    "airplane": partial(operate, command="airplane on"),
    "data": partial(operate, command="data off"),
    "saver": partial(operate, command="saver on"),
    "vpn": partial(operate, command="vpn on"),
    "mode": partial(operate, command="mode 2g"),
    "apn": lambda phone: replace(phone, apn="wrong"),
    "sim": lambda phone: replace(phone, sim="loose"),
}
"""Faults that the customer can repair, each with what it does to a telephone."""
ROAMING_FAULT = {"roaming": partial(operate, command="roaming off")}
"""The fault that only a telephone abroad can have."""
ACCOUNT_FAULTS = ("account roaming", "used up", "unregistered")


@dataclass(frozen=True)
class Draw:
    """What a family draws from.

    Attributes:
        rng: The only source of randomness.
        faults: Fewest and most faults of a case that is about a fault.
        terse: Whether customers use as few words as possible.
    """

    rng: np.random.Generator
    faults: tuple[int, int]
    terse: bool

    def one(self, *choices: str) -> str:
        """The first of the texts with `terse`, otherwise one of the others."""
        return choices[0] if self.terse else choices[1 + self.rng.integers(len(choices) - 1)]

    def some(self, names: list[str], count: int) -> list[str]:
        chosen = sorted(self.rng.permutation(len(names))[:count])
        return [names[index] for index in chosen]

    def count(self, most: int) -> int:
        low, high = min(self.faults[0], most), min(self.faults[1], most)
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)


def device(draw: Draw) -> Task:
    """The telephone has faults that the customer can repair; the account is not needed."""
    caller = draw_caller(draw.rng)
    healthy = _healthy(draw)
    faults = draw.some(list(DEVICE_FAULTS), max(draw.count(len(DEVICE_FAULTS)), 1))
    start = World(caller.database(), _broken(healthy, faults), caller.line.number)
    opening = draw.one(
        "no data",
        "Hello, the internet on my phone does not work.",
        "Hi! I have no mobile data, and I do not know why.",
    )
    wish = draw.one("data", "My mobile data should work again.")
    return _task(draw, "device", "+".join(faults), opening, wish, start, healthy)


def data(draw: Draw) -> Task:
    """No data, with at least one fault on the account and others on the telephone."""
    caller = draw_caller(draw.rng)
    abroad = draw.chance()
    healthy = _healthy(draw, abroad)
    possible = [*DEVICE_FAULTS, "roaming"] if abroad else [*DEVICE_FAULTS]
    on_account = ACCOUNT_FAULTS if abroad else ACCOUNT_FAULTS[1:]
    total = max(draw.count(4), 1)
    faults = draw.some(list(on_account), 1 + int(draw.rng.integers(min(total, 2))))
    on_phone = draw.some(possible, total - len(faults))
    line, writes = replace(caller.line, roaming=abroad), []
    gb = int(draw.rng.choice(list(TOP_UPS)))
    for fault in faults:
        line, write = _account_fault(fault, line, gb)
        writes.append(write)
    start = World(caller.database(line), _broken(healthy, on_phone), line.number)
    place = " I am abroad." if abroad else ""
    opening = draw.one(
        "no data, abroad" if abroad else "no data",
        f"Hello, I cannot get online with my phone.{place}",
        f"Hi, mobile data stopped working this morning.{place}",
    )
    return replace(
        _task(
            draw, "data", "+".join((*faults, *on_phone)), opening, "data", start, healthy, writes
        ),
        wish=draw.one("data", f"I want to get online again.{place}"),
        accepts=frozenset({f"gb:{gb}"}),
        reads=("get_line",),
    )


def plan(draw: Draw) -> Task:
    """Another plan, if the contract, the line and the bills allow it."""
    variant = ("upgrade", "downgrade", "bound", "overdue")[draw.rng.integers(4)]
    down = variant in ("downgrade", "bound") or (variant == "overdue" and draw.chance())
    index = int(draw.rng.integers(len(PLANS) - 1))
    low, high = PLANS[index], PLANS[index + 1 + draw.rng.integers(len(PLANS) - 1 - index)]
    old, new = (high, low) if down else (low, high)
    caller = draw_caller(draw.rng, old.name)
    # A contract in force stops a cheaper plan only, so an upgrade may have one.
    bound = variant == "bound" or (variant == "upgrade" and draw.chance())
    until = months_before(
        TODAY, int(draw.rng.integers(-9, 0) if bound else draw.rng.integers(1, 9))
    )
    line = replace(caller.line, bound_until=until)
    bills, writes = caller.bills, []
    if variant == "overdue":
        bills = _with_status(bills, 1, "overdue")
        writes.append(RequestPayment(bills[1].id))
    if variant != "bound":
        writes.append(ChangePlan(line.number, new.name))
    start = World(caller.database(line, bills), Phone(), line.number)
    opening, wish = _wish_for_plan(draw, new)
    inform = {"no", f"until:{until}"} if variant == "bound" else set()
    if variant == "overdue":
        inform = {f"bill:{bills[1].total}"}
    return replace(
        _task(draw, "plan", variant, opening, wish, start, start.phone, writes),
        accepts=frozenset({f"plan:{new.name}"}),
        inform=frozenset(inform),
        reads=("get_line", "get_bills", "list_plans"),
    )


def refund(draw: Draw) -> Task:
    """A charge that the customer doubts: given back only if it was charged twice, and recently."""
    variant = ("doubled", "doubled", "correct", "old")[draw.rng.integers(4)]
    caller = draw_caller(draw.rng)
    index = 0 if variant == "old" else int(draw.rng.integers(1, 3))
    amount = int(draw.rng.integers(5, LARGEST_CREDIT + 1))
    bills, charge = _with_charge(draw, caller, index, amount, twice=variant != "correct")
    writes = [Credit(bills[index].id, amount)] if variant == "doubled" else []
    start = World(caller.database(bills=bills), Phone(), caller.line.number)
    opening, wish = _wish_for_refund(draw, charge, bills[index].month)
    return replace(
        _task(draw, "refund", variant, opening, wish, start, start.phone, writes),
        inform=frozenset({f"back:{amount}"} if writes else {"no", f"bill:{bills[index].total}"}),
        reads=("get_bills",),
    )


def suspended(draw: Draw) -> Task:
    """A line that is suspended for unpaid bills; the telephone may have faults too."""
    caller = draw_caller(draw.rng)
    line = replace(caller.line, status="suspended", hold="unpaid")
    unpaid = draw.some(["0", "1"], 1 + int(draw.rng.integers(2)))
    bills = caller.bills
    for index in unpaid:
        bills = _with_status(bills, int(index), "overdue")
    faults = draw.some(list(DEVICE_FAULTS), max(draw.count(4) - 1, 0))
    healthy = _healthy(draw)
    start = World(caller.database(line, bills), _broken(healthy, faults), line.number)
    writes: list[Tool] = [RequestPayment(bills[int(index)].id) for index in unpaid]
    writes.append(ResumeLine(line.number))
    opening, wish = _no_service(draw)
    return replace(
        _task(draw, "suspended", f"{len(unpaid)} bills", opening, wish, start, healthy, writes),
        inform=frozenset(f"bill:{bills[int(index)].total}" for index in unpaid),
        reads=("get_line", "get_bills"),
    )


def transfer(draw: Draw) -> Task:
    """A case that the policy leaves to a person."""
    variant = ("fraud", "refund", "identity", "cancel")[draw.rng.integers(4)]
    caller = draw_caller(draw.rng)
    line, bills, reads = caller.line, caller.bills, ()
    match variant:
        case "fraud":
            line = replace(line, status="suspended", hold="fraud")
            (opening, wish), reads = _no_service(draw), ("get_line",)
        case "refund":
            index = int(draw.rng.integers(1, 3))
            amount = int(draw.rng.integers(LARGEST_CREDIT + 1, 3 * LARGEST_CREDIT))
            bills, charge = _with_charge(draw, caller, index, amount, twice=True)
            opening, wish = _wish_for_refund(draw, charge, bills[index].month)
            reads = ("get_bills",)
        case "identity":
            new = PLANS[draw.rng.integers(len(PLANS))]
            (opening, wish), reads = _wish_for_plan(draw, new), ("get_line",)
        case _:
            opening = draw.one("cancel contract", "Hello, I would like to cancel my contract.")
            wish, reads = opening, ("get_line",)
    start = World(caller.database(line, bills), Phone(), line.number)
    task = _task(draw, "transfer", variant, opening, wish, start, start.phone, (), variant)
    return replace(task, reads=reads, knows_pin=variant != "identity")


FAMILIES: dict[Family, Callable[[Draw], Task]] = {
    "device": device,
    "data": data,
    "plan": plan,
    "refund": refund,
    "suspended": suspended,
    "transfer": transfer,
}


# --------------------------------------------------------------------------------- parts of a case


def _task(
    draw: Draw,
    family: Family,
    variant: str,
    opening: str,
    wish: str,
    start: World,
    healthy: Phone,
    writes: Sequence[Tool] = (),
    transferred: str = "",
) -> Task:
    persona = PERSONAS[draw.rng.integers(len(PERSONAS))]
    goal = solved(start, writes, healthy, transferred)
    return Task(family, variant, persona, opening, wish, start, goal, writes=tuple(writes))


def _healthy(draw: Draw, abroad: bool = False) -> Phone:
    """A telephone without faults, with what has no effect as the customer likes it."""
    roaming, wifi, hotspot = draw.chance(), draw.chance(), draw.chance()
    return Phone(wifi=wifi, hotspot=hotspot, roaming=roaming or abroad, abroad=abroad)


def _broken(phone: Phone, faults: list[str]) -> Phone:
    for fault in faults:
        phone = (DEVICE_FAULTS | ROAMING_FAULT)[fault](phone)
    return phone


def _account_fault(fault: str, line: Line, gb: int) -> tuple[Line, Tool]:
    """The line with a fault, and the tool that mends it."""
    match fault:
        case "account roaming":
            return replace(line, roaming=False), SetRoaming(line.number, True)
        case "used up":
            return replace(line, used_gb=line.limit_gb), AddData(line.number, gb)
        case _:
            return replace(line, registered=False), RegisterLine(line.number)


def _with_status(bills: tuple[Bill, ...], index: int, status: str) -> tuple[Bill, ...]:
    return tuple(
        replace(bill, status=status) if number == index else bill
        for number, bill in enumerate(bills)
    )


def _with_charge(
    draw: Draw, caller: Caller, index: int, amount: int, twice: bool
) -> tuple[tuple[Bill, ...], Charge]:
    """The caller's bills with a charge added to one of them, once or twice."""
    charge = Charge(EXTRAS[draw.rng.integers(len(EXTRAS))], amount)
    others = tuple(one for one in caller.bills[index].charges if one.what != charge.what)
    bill = replace(caller.bills[index], charges=(*others, *(charge,) * (2 if twice else 1)))
    bills = (*caller.bills[:index], bill, *caller.bills[index + 1 :])
    assert bill.month == MONTHS[index]
    return bills, charge


def _no_service(draw: Draw) -> tuple[str, str]:
    opening = draw.one(
        "no service",
        "Hello, my phone has had no service since yesterday.",
        "Hi, I can neither call nor get online.",
    )
    return opening, draw.one("service", "I want to use my line again.")


def _wish_for_plan(draw: Draw, new: Plan) -> tuple[str, str]:
    assert plan_named(new.name) == new
    wish = draw.one(
        f"plan {new.name}",
        f"I would like to have plan {new.name}.",
        f"I want the cheapest plan with at least {new.gb - 2} GB.",
    )
    return (wish if draw.terse else f"Good morning. {wish}"), wish


def _wish_for_refund(draw: Draw, charge: Charge, month: str) -> tuple[str, str]:
    wish = draw.one(
        f"refund {charge.what} {month}",
        f"I want my money back for {charge.what} on the bill of {month}.",
        f"There is a charge for {charge.what} on my {month} bill that I doubt. Please refund it.",
    )
    return (wish if draw.terse else f"Hello. {wish}"), wish
