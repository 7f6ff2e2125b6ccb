"""What a hint model is: it writes the agent a hint before a turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from vagentrl.environment import Environment
from vagentrl.types import Observation, Reply

HintKind = Literal["explore", "exploit"]


@dataclass(frozen=True)
class Exchange:
    """An earlier turn: what the agent saw, hint included, and what it replied."""

    observation: Observation
    reply: Reply


@dataclass(frozen=True)
class Situation:
    """What a hint is asked for.

    Attributes:
        kind: ``explore`` asks for another way, ``exploit`` for the best next step.
        environment: In the state that the agent is about to act in; not to be stepped.
        past: Earlier turns of the episode, the last one last.
        observation: What the agent sees now.
        seeds: Of the episode's start, of its transitions, and the number of the turn: together
            they are never the same for two turns of a run.
    """

    kind: HintKind
    environment: Environment
    past: tuple[Exchange, ...]
    observation: Observation
    seeds: tuple[int, int, int]


@dataclass(frozen=True)
class Hint:
    """What the agent is told, and what it took to write it.

    Attributes:
        text: The hint.
        action: The action that it names, where that is known.
        prompt_tokens: Tokens that the model read.
        reply_tokens: Tokens that it wrote.
        cost: Price of both, in the currency that the model's prices were given in.
    """

    text: str
    action: str | None = None
    prompt_tokens: int = 0
    reply_tokens: int = 0
    cost: float = 0.0


class HintModel(ABC):
    """Writes hints. One is shared by the environments of a process, each in a thread of its own."""

    @property
    def replays(self) -> bool:
        """Whether an episode that is played again gets the same hints again."""
        return True

    @property
    def waits_s(self) -> float:
        """Seconds after which `hint` gives up; 0 where it does not wait for anything."""
        return 0.0

    @abstractmethod
    def hint(self, situation: Situation) -> Hint | None:
        """Write a hint; None when there is nothing to say.

        Raises:
            ChatError: When the model gave no answer.
        """
