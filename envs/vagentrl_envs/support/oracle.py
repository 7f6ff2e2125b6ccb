"""The expert: the next action that leads to the goal, from what the conversation has shown so far.

The expert asks before it acts on something, so that a model can learn to do the same: it uses no
record and no setting that the agent has not been shown.
"""

from __future__ import annotations

from vagentrl_envs.support.calls import SAY, write_call
from vagentrl_envs.support.phone import ACTIONS, World, repairs
from vagentrl_envs.support.records import TOP_UPS, plan_named
from vagentrl_envs.support.talk import Talk
from vagentrl_envs.support.tasks import Task
from vagentrl_envs.support.tools import (
    AddData,
    ChangePlan,
    Close,
    Credit,
    FindCustomer,
    GetBills,
    GetLine,
    ListPlans,
    RequestPayment,
    SetRoaming,
    Tool,
    ToolError,
    Transfer,
    Verify,
)


def say(text: str) -> str:
    """A message to the customer, as an action."""
    return write_call(SAY, {"text": text})


class Expert:
    """Knows the task, and what to do next.

    Args:
        task: The task, whose goal it leads to.
        terse: Talk in as few words as possible.
    """

    def __init__(self, task: Task, terse: bool) -> None:
        self.task = task
        self.terse = terse

    def next_action(self, world: World, talk: Talk) -> str:
        """The next action of a solution."""
        task = self.task
        if task.needs_account and (action := self._identify(world, talk)):
            return action
        if not task.goal.transferred or task.knows_pin:
            if action := self._read(world, talk):
                return action
            for write in task.writes:
                if not self._is_done(write, world):
                    return self._write(write, world, talk)
            if world.line.roaming != task.goal.line.roaming:  # the only write that can be undone
                return SetRoaming(world.number, task.goal.line.roaming).call
        for command in repairs(world.phone, task.goal.phone) if task.needs_phone else ():
            return self._ask(command, ACTIONS[command].sentence)
        if task.inform - talk.told:
            return self._inform(task.inform)
        if task.goal.transferred:
            return Transfer(task.goal.transferred).call
        return Close().call

    # ------------------------------------------------------------------------------- the stages

    def _ask(self, terse: str, full: str) -> str:
        return say(terse if self.terse else full)

    def _identify(self, world: World, talk: Talk) -> str | None:
        """Who is calling; None when that is known or cannot be known."""
        if talk.verified:
            return None
        if "number" not in talk.given:
            return self._ask("number?", "What is your phone number?")
        if FindCustomer.name not in talk.seen:
            return FindCustomer(world.number).call
        if "pin" not in talk.given:
            return self._ask("pin?", "Please tell me your PIN.")
        if not self.task.knows_pin:
            return None
        customer = world.database.customer(world.line.customer)
        assert customer is not None, "every line belongs to a customer"
        return Verify(customer.id, customer.pin).call

    def _read(self, world: World, talk: Talk) -> str | None:
        """What must be known before anything is changed."""
        reads: dict[str, Tool] = {
            GetLine.name: GetLine(world.number),
            GetBills.name: GetBills(world.line.customer),
            ListPlans.name: ListPlans(),
        }
        for name in self.task.reads:
            if name not in talk.seen:
                return reads[name].call
        if self.task.needs_phone and "settings" not in talk.given:
            return self._ask("settings?", "Which settings does your phone show?")
        return None

    def _is_done(self, write: Tool, world: World) -> bool:
        """Whether the world is already as the write would leave it."""
        match write:
            case RequestPayment(bill=id):
                bill = world.database.bill(id)
                return bill is not None and bill.status == "paid"
            case AddData(line=number):
                line, goal = (here.database.line(number) for here in (world, self.task.goal))
                return line is not None and goal is not None and line.extra_gb >= goal.extra_gb
            case Credit(bill=id):
                bill = world.database.bill(id)
                return bill is not None and bill.credit > 0
        try:
            return write.run(world).world == world
        except ToolError:
            return True

    def _write(self, write: Tool, world: World, talk: Talk) -> str:
        """The write, or what the customer must be told or asked before it."""
        match write:
            case AddData(gb=gb):
                if "top-up" not in talk.given:
                    return self._ask("top-up?", "Which top-up would you like?")
                if f"gb:{gb}" not in talk.agreed:
                    price = TOP_UPS[gb]
                    return self._ask(f"{gb} GB {price}, ok?", f"{gb} GB cost ${price}. Agreed?")
            case ChangePlan(plan=name) if f"plan:{name}" not in talk.agreed:
                plan = plan_named(name)
                price = plan.price if plan else 0
                return self._ask(
                    f"plan {name} {price}, ok?", f"Plan {name} costs ${price} a month. Agreed?"
                )
            case RequestPayment(bill=id):
                bill = world.database.bill(id)
                assert bill is not None, "the task draws its bills"
                if f"bill:{bill.total}" not in talk.told:
                    return self._ask(f"{bill.total} due", f"Your bill of ${bill.total} is unpaid.")
                if bill.status == "requested":
                    return self._ask("pay", "Please pay the request that I sent.")
        return write.call

    def _inform(self, facts: frozenset[str]) -> str:
        others = " ".join(sorted(fact.partition(":")[2] for fact in facts - {"no"}))
        if "no" not in facts:
            return self._ask(f"{others} back", f"You get ${others} back.")
        if self.task.family == "refund":
            return self._ask(
                f"no, {others}", f"This is not possible: the bill of ${others} is right."
            )
        return self._ask(
            f"no, until {others}", f"This is not possible: your contract binds you until {others}."
        )
