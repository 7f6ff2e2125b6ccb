"""What has happened in a conversation so far, and the interface of simulated customers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from vagentrl_envs.support.phone import World
from vagentrl_envs.support.tasks import Task


@dataclass(frozen=True)
class Talk:
    """The course of a conversation.

    Attributes:
        verified: Id of the customer whose PIN was right; empty before that.
        attempts: Wrong PINs so far.
        seen: Names of the tools whose answers the agent has read.
        given: What the customer has said: ``number``, ``pin``, ``settings``, ``top-up``, …
        told: Numbers, months and ``no`` that the customer was told.
        agreed: What the customer agreed to at its true price, as ``plan:L`` or ``gb:5``.
        confusion: Messages in a row that the customer did not understand.
        history: All messages, each with who wrote it, ``agent`` or ``customer``, and the answers
            of tools (``tool``), which the customer does not see.
    """

    verified: str = ""
    attempts: int = 0
    seen: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    agreed: frozenset[str] = frozenset()
    confusion: int = 0
    history: tuple[tuple[str, str], ...] = ()

    def with_seen(self, tool: str) -> Talk:
        return replace(self, seen=self.seen | {tool})

    def with_line(self, who: str, text: str) -> Talk:
        """The conversation with another message."""
        return replace(self, history=(*self.history, (who, text)))


@dataclass(frozen=True)
class UserTurn:
    """The customer's answer to a message.

    Attributes:
        text: What the customer says.
        world: The world after what the customer did.
        talk: The conversation, without this answer in its history.
        actions: Number of things that the customer did.
        hung_up: Whether the customer has ended the call.
    """

    text: str
    world: World
    talk: Talk
    actions: int = 0
    hung_up: bool = False


class User(ABC):
    """A simulated customer, who alone can operate the telephone.

    One object serves all episodes of a process, so it keeps nothing of an episode.
    """

    @property
    def replays(self) -> bool:
        """Whether the same messages always get the same answers."""
        return True

    @property
    def waits_s(self) -> float:
        """Seconds after which `answer` times out; 0 if it never waits."""
        return 0.0

    @abstractmethod
    def answer(self, task: Task, world: World, talk: Talk, message: str) -> UserTurn:
        """Answer a message of the agent.

        Args:
            task: The customer's goal, persona and knowledge.
            world: The world before the answer.
            talk: The conversation so far; the message is the last of its history.
            message: What the agent said.

        Raises:
            ChatError: When a chat model that plays the customer fails.
        """
