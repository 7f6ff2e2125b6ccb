"""A task of the support domain: what the customer wants, knows and does, and how it should end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vagentrl_envs.support.phone import Phone, World
from vagentrl_envs.support.tools import RequestPayment, Tool

Family = Literal["device", "data", "plan", "refund", "suspended", "transfer"]


@dataclass(frozen=True)
class Persona:
    """How a customer behaves.

    Attributes:
        name: Name of the persona.
        at_once: Instructions of one message that the customer carries out.
        patience: Messages in a row that the customer may fail to understand before hanging up.
        about: Description for a chat model that plays the customer.
    """

    name: str
    at_once: int
    patience: int
    about: str


NEEDLESS = 2
"""Needless requests of a conversation that every customer puts up with: see `phone.is_needless`."""
PERSONAS = (
    Persona("calm", 3, 4, "You are friendly and relaxed."),
    Persona("careful", 1, 4, "You are unsure with technology and do one thing at a time."),
    Persona("hurried", 3, 2, "You are in a hurry and answer in very few words."),
)


@dataclass(frozen=True)
class Task:
    """A customer's case.

    Attributes:
        family: The kind of case.
        variant: What decides the case within its family, such as ``upgrade``.
        persona: How the customer behaves.
        opening: The customer's first message.
        wish: What the customer says when asked for the goal again.
        knows_pin: Whether the customer can prove to be the account holder.
        accepts: What the customer agrees to buy, as ``plan:L`` or ``gb:5``.
        start: The world in the beginning.
        goal: The world in the end, if the task is solved.
        inform: What the customer must be told, as in `Talk.told`.
        reads: Tools that the solution reads from once the caller is verified.
        writes: The solution's writes, in order. The customer pays after each payment request.
    """

    family: Family
    variant: str
    persona: Persona
    opening: str
    wish: str
    start: World
    goal: World
    knows_pin: bool = True
    accepts: frozenset[str] = frozenset()
    inform: frozenset[str] = frozenset()
    reads: tuple[str, ...] = ()
    writes: tuple[Tool, ...] = ()

    @property
    def needs_account(self) -> bool:
        """Whether the solution needs the records of the customer."""
        return bool(self.reads)

    @property
    def needs_phone(self) -> bool:
        """Whether the solution needs something of the telephone."""
        return self.family in ("device", "data", "suspended") and not self.goal.transferred


def solved(start: World, writes: Sequence[Tool], phone: Phone, transferred: str = "") -> World:
    """The world that the solution reaches: its writes and payments, and the telephone repaired."""
    world = start
    for tool in writes:
        world = tool.run(world).world
        if isinstance(tool, RequestPayment):
            paid = world.pay()
            assert paid is not None, "a request was just sent"
            world = paid
    return replace(world, phone=phone, transferred=transferred)
