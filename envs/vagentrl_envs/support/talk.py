"""What has happened in a conversation so far, and the interface of simulated customers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from vagentrl_envs.support.phone import World
from vagentrl_envs.support.tasks import Task
from vagentrl_envs.support.understanding import Heard


@dataclass(frozen=True)
class Talk:
    """The course of a conversation.

    Attributes:
        verified: Id of the customer whose PIN was right; empty before that.
        attempts: Wrong PINs so far.
        seen: Names of the tools whose answers the agent has read.
        given: What the customer has said: ``number``, ``pin``, ``settings``, ``top-up``, …
        told: What the customer was told: ``bill:44`` (a bill's total), ``back:24`` (money that is
            given back), ``until:2026-09`` (the end of the contract) and ``no`` (a refusal).
        agreed: What the customer agreed to at its true price, as ``plan:L`` or ``gb:5``.
        confusion: Messages in a row that the customer did not understand.
        needless: Requests so far that repaired nothing: see `phone.is_needless`.
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
    needless: int = 0
    history: tuple[tuple[str, str], ...] = ()

    def with_seen(self, tool: str) -> Talk:
        return replace(self, seen=self.seen | {tool})

    def with_heard(self, heard: Heard, task: Task) -> Talk:
        """The conversation after the customer took in what a message tells.

        A promise takes a refusal back. The reasons of a refusal do not add up: the last one counts.
        """
        told = self.told - {"no"} if heard.promise else self.told
        if "no" in task.inform:
            kinds = {_kind(fact) for fact in heard.told}
            told = frozenset(fact for fact in told if fact == "no" or _kind(fact) not in kinds)
        return replace(self, told=told | heard.told)

    def with_line(self, who: str, text: str) -> Talk:
        """The conversation with another message."""
        return replace(self, history=(*self.history, (who, text)))


def _kind(fact: str) -> str:
    return fact.partition(":")[0]


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
