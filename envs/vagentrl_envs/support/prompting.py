"""What the agent is told before the conversation: task, policy, tools and reply format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vagentrl.formats import ReplyFormat
from vagentrl_envs.support.cast import draw_caller
from vagentrl_envs.support.describing import describe
from vagentrl_envs.support.phone import ACTIONS, Phone, World
from vagentrl_envs.support.policy import ACCOUNT, ALWAYS, RULES
from vagentrl_envs.support.tasks import Family
from vagentrl_envs.support.tools import TOOLS, Tool

NO_ACCOUNT = ("close", "transfer")
"""Tools of a support that has nothing but the customer's telephone to care for."""


def tools_for(families: Sequence[Family]) -> Mapping[str, type[Tool]]:
    """The tools that the agent has for these families of cases."""
    if set(families) == {"device"}:
        return {name: TOOLS[name] for name in NO_ACCOUNT}
    return TOOLS


def rules_for(families: Sequence[Family]) -> list[str]:
    """The policy for these families of cases, a rule a line."""
    rules = [*ALWAYS]
    if set(families) != {"device"}:
        rules += ACCOUNT
    if {"data", "suspended"} & set(families):  # they can have the faults of a telephone too
        rules += RULES["device"]
    for family in families:
        rules += (rule for rule in RULES[family] if rule not in rules)
    return rules


def system_prompt(families: Sequence[Family], format: ReplyFormat, terse: bool) -> str:
    """The system prompt; with `terse` without the policy, which a tiny model cannot read."""
    instructions = format.instructions(1, _schema(format))
    tools = tools_for(families).values()
    if terse:
        names = " ".join(tool.signature() for tool in tools)
        return f"Phone support. Tools: {names} say[...]\n{instructions}"
    listed = "\n".join(f"- {tool.signature()}: {tool.about}" for tool in tools)
    policy = "\n".join(f"- {rule}" for rule in rules_for(families))
    doable = ", ".join(action for action in ACTIONS)
    return (
        "You are the support of a telephone company and talk with a customer. In each turn you "
        "either call one tool or say one thing to the customer. You see the tool's result, or the "
        f"customer's answer.\n\nPolicy:\n{policy}\n\nTools:\n{listed}\n"
        "- say[message]: speak to the customer, for example say[What is your phone number?]\n\n"
        f"On request the customer can answer questions, pay, and do this with the phone: {doable}. "
        "A call is name(argument=value, ...) or "
        '{"name": "...", "arguments": {...}}.\n\n'
        f"{instructions}"
    )


def _schema(format: ReplyFormat) -> str | None:
    """How to write a state: an example of one."""
    if format.state is None:
        return None
    import numpy as np

    caller = draw_caller(np.random.default_rng(0))
    example = describe(World(caller.database(), Phone(), caller.line.number))
    return f"the phone and its line, for example: {getattr(example, format.state)}"
