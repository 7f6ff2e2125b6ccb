"""The `HintModel` interface: writes a hint for the agent before a turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from vagentrl.environment import Environment
from vagentrl.types import Observation, Reply

HintKind = Literal["explore", "exploit"]


@dataclass(frozen=True)
class Exchange:
    """An earlier turn: the observation, with its hint, and the agent's reply."""

    observation: Observation
    reply: Reply


@dataclass(frozen=True)
class Situation:
    """The turn for which a hint is requested.

    Attributes:
        kind: ``explore`` requests a different approach, ``exploit`` the best next step.
        environment: The environment in its current state. A hint model must not step it.
        past: Earlier turns of the episode, oldest first.
        observation: The current observation, without a hint.
        seeds: The episode's seed, its transition seed, and the number of the turn; unique for
            every turn of a run.
    """

    kind: HintKind
    environment: Environment
    past: tuple[Exchange, ...]
    observation: Observation
    seeds: tuple[int, int, int]


@dataclass(frozen=True)
class Hint:
    """A hint, with its token counts and cost.

    Attributes:
        text: The hint.
        action: The action that the hint suggests; None if unknown.
        prompt_tokens: Number of tokens in the hint model's prompt.
        reply_tokens: Number of tokens in its reply.
        cost: Price of all tokens, in the currency of the model's prices.
    """

    text: str
    action: str | None = None
    prompt_tokens: int = 0
    reply_tokens: int = 0
    cost: float = 0.0


class HintModel(ABC):
    """Writes hints. All environments of a process share one; each calls it from its own thread."""

    @property
    def replays(self) -> bool:
        """Whether an episode that is played again gets the same hints."""
        return True

    @property
    def waits_s(self) -> float:
        """Seconds after which `hint` times out; 0 if it never waits."""
        return 0.0

    def probe(self) -> None:  # noqa: B027 (most hint models have no endpoint)
        """Ask the model's endpoint, if it has one, whether it answers.

        Raises:
            ChatError: When it does not.
        """

    @abstractmethod
    def hint(self, situation: Situation) -> Hint | None:
        """Write a hint; None if the model has no hint for this turn.

        Raises:
            ChatError: When the model fails.
        """
