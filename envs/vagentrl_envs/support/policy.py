"""The company's policy: as text for the agent, and as checks of its writes."""

from __future__ import annotations

from vagentrl_envs.support.phone import World
from vagentrl_envs.support.records import (
    LARGEST_CREDIT,
    TODAY,
    TOP_UPS,
    Line,
    months_before,
    plan_named,
)
from vagentrl_envs.support.talk import Talk
from vagentrl_envs.support.tasks import NEEDLESS, Family
from vagentrl_envs.support.tools import (
    AddData,
    ChangePlan,
    Credit,
    RequestPayment,
    ResumeLine,
    Tool,
    Transfer,
)

ATTEMPTS = 2
"""Wrong PINs after which the caller cannot be verified any more."""
OLDEST_CREDIT = months_before(TODAY, 1)
"""The oldest bill of which money may be given back."""

ALWAYS = (
    f"The current month is {TODAY}. Do only what the customer's case needs.",
    "Only the customer can operate the phone: ask, and wait for the answer. Ask only for what "
    f"repairs something, or for a restart: after {NEEDLESS} requests that repair nothing the "
    "customer hangs up at the next one.",
    "End with close() when the case is done, or refused with its reason.",
)
ACCOUNT = (
    "Before you read or change an account, ask for the number and the PIN and verify the caller. "
    f"You have {ATTEMPTS} attempts. If the caller has no right PIN: transfer(identity).",
    "Touch only the records of the verified customer.",
    "Tell the customer one amount in a message, and name one plan or top-up with its price.",
)
RULES: dict[Family, tuple[str, ...]] = {
    "device": (
        "No data: ask for the phone's settings and what it shows. Airplane mode, data saver and "
        "VPN are to be off, mobile data on, the network mode automatic, the APN right and the SIM "
        "card in place. Data roaming is to be on abroad. Leave everything else as the customer "
        "has it: Wi-Fi, the hotspot, and data roaming at home.",
        "A new APN, a registered line and a resumed line need a restart of the phone.",
    ),
    "data": (
        "On the account, data needs a registered line, data that is not used up, and, abroad "
        "only, roaming.",
        "A top-up costs money: ask which one the customer wants, and name the size and the price "
        "and wait for a yes before you book it.",
    ),
    "plan": (
        "A plan may be changed if the line is active and no bill is overdue; have overdue bills "
        "paid first. While the contract binds the line (until the end of its last month), only a "
        "dearer plan is allowed: otherwise refuse, and say until which month it binds.",
        "Name the plan and its price and wait for a yes before you change it.",
    ),
    "refund": (
        "Give money back only for a charge that stands twice on the same bill: once its amount, "
        f"on a bill of {OLDEST_CREDIT} or later, and tell the customer the amount. Otherwise "
        "refuse, and say the bill's total. "
        f"Amounts above ${LARGEST_CREDIT}: transfer(refund).",
    ),
    "suspended": (
        "A line that is suspended as unpaid: for each overdue bill tell the customer its total, "
        "send a payment request (one at a time) and ask the customer to pay. When nothing is "
        "overdue, resume the line.",
    ),
    "transfer": (
        "A line that is suspended for fraud stays so: transfer(fraud). A contract that is to be "
        "cancelled: transfer(cancel). Verify the caller first. Transfer nothing else.",
    ),
}
"""The rules that a family of cases needs beside `ALWAYS` and, except ``device``, `ACCOUNT`."""


def untimely(tool: Transfer, talk: Talk) -> str | None:
    """What must happen before this transfer; None if it is time for it."""
    if tool.reason != "identity":
        return None if talk.verified else "first verify the caller"
    return None if "pin" in talk.given else "first ask for the PIN"


def violation(tool: Tool, world: World, talk: Talk) -> str | None:
    """The rule that a write breaks; None if the policy allows it.

    Raises:
        ToolError: When the write names records that do not exist.
    """
    if not tool.writes:
        return None
    account = tool.account(world)
    if not talk.verified:
        return "the caller was not verified"
    if account != talk.verified:
        return "these are records of another customer"
    match tool:
        case AddData(line=number, gb=gb) if gb in TOP_UPS:
            return _paid_for(f"gb:{gb}", talk) or _inactive(world.database.line(number))
        case ChangePlan(line=number):
            return _plan_change(tool, world, talk, world.database.line(number))
        case ResumeLine(line=number):
            return _resumption(world, world.database.line(number))
        case RequestPayment(bill=id):
            bill = world.database.bill(id)
            if bill is None or bill.status != "overdue":
                return None  # the tool refuses the call
            if f"bill:{bill.total}" not in talk.told:
                return "the customer was not told the total"
        case Credit():
            return _credit(tool, world)
    return None


def _paid_for(what: str, talk: Talk) -> str | None:
    if what not in talk.agreed:
        return "the customer has not agreed to it at its price"
    return None


def _inactive(line: Line | None) -> str | None:
    return "the line is suspended" if line is not None and line.status != "active" else None


def _plan_change(tool: ChangePlan, world: World, talk: Talk, line: Line | None) -> str | None:
    new = plan_named(tool.plan)
    if line is None or new is None or line.plan == new.name:
        return None  # the tool refuses the call
    old = plan_named(line.plan)
    if world.database.overdue(line.customer):
        return "a bill is overdue"
    if old is not None and new.price < old.price and line.bound_until >= TODAY:
        return "the contract allows no cheaper plan yet"
    return _inactive(line) or _paid_for(f"plan:{tool.plan}", talk)


def _resumption(world: World, line: Line | None) -> str | None:
    if line is None or line.status == "active":
        return None  # the tool refuses the call
    if line.hold == "fraud":
        return "a line that is suspended for fraud stays so"
    return "a bill is overdue" if world.database.overdue(line.customer) else None


def _credit(tool: Credit, world: World) -> str | None:
    bill = world.database.bill(tool.bill)
    if bill is None or bill.credit:
        return None  # the tool refuses the call
    doubled = bill.doubled()
    if doubled is None or doubled.amount != tool.amount:
        return "only a charge that stands twice is given back, once its amount"
    if bill.month < OLDEST_CREDIT:
        return "the bill is too old"
    return "a person decides on this amount" if tool.amount > LARGEST_CREDIT else None
