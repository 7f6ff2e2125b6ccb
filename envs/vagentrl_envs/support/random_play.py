"""Random actions that are possible in a state, for measuring random play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from random import Random

from vagentrl_envs.support.oracle import say
from vagentrl_envs.support.phone import ACTIONS, World
from vagentrl_envs.support.records import PLANS, TOP_UPS
from vagentrl_envs.support.tools import REASONS, Tool

QUESTIONS = ("settings?", "status?", "number?", "pin?", "top-up?")


def random_action(rng: Random, world: World, tools: Sequence[type[Tool]]) -> str:
    """One action: as often a message as a tool call."""
    if rng.random() < 0.5:
        messages = [*ACTIONS, *QUESTIONS]
        if len(tools) > 2:  # with an account there is something to pay, to sell and to refuse
            messages += ["pay", "no", *_offers(), *_totals(world)]
        return say(rng.choice(messages))
    tool = rng.choice(list(tools))
    values = {
        field.name: rng.choice(_values(field.name, world))
        for field in fields(tool)  # pyright: ignore
    }
    return tool(**values).call


def _offers() -> list[str]:
    plans = [f"plan {plan.name} {plan.price}, ok?" for plan in PLANS]
    return plans + [f"{gb} GB {price}, ok?" for gb, price in TOP_UPS.items()]


def _totals(world: World) -> list[str]:
    return [f"{bill.total} due" for bill in world.database.bills_of(world.line.customer)]


def _values(argument: str, world: World) -> list[str | int | bool]:
    """Values that make sense for an argument; the caller's own records where there are any."""
    customer = world.line.customer
    match argument:
        case "line" | "number":
            return [world.number]
        case "customer":
            return [customer]
        case "pin":
            owner = world.database.customer(customer)
            return [owner.pin if owner else ""]
        case "bill":
            return [bill.id for bill in world.database.bills_of(customer)]
        case "plan":
            return [plan.name for plan in PLANS]
        case "gb":
            return list(TOP_UPS)
        case "amount":
            charges = [c for bill in world.database.bills_of(customer) for c in bill.charges]
            return [charge.amount for charge in charges]
        case "reason":
            return list(REASONS)
        case _:
            return [True, False]
