"""The `Judge` interface: scores an agent's claim about the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, runtime_checkable

from vagentrl.errors import JudgeError, PartError, seen
from vagentrl.types import Claim, ClaimKind

__all__ = ["Claim", "ClaimKind", "Judge", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """A judge's score of a claim.

    Attributes:
        score: From 0 (all wrong) to 1 (all right).
        reason: Explanation of the score, for the log.
    """

    score: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.score, Real) or not 0 <= self.score <= 1:  # NaN is neither
            raise JudgeError(
                f"a verdict's score is {seen(self.score)}; a judge gives a number from 0 to 1"
            )


@runtime_checkable
class _Identified(Protocol):
    """A part that says which of its settings matter: a judge, a chat model, a parser."""

    def identity(self) -> str: ...


class Judge(ABC):
    """Scores claims; many coroutines call the judge concurrently.

    The trainer calls the judge itself, which checks what `judge` returns.
    """

    _settings: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        judge = super().__new__(cls)
        judge._settings = (args, kwargs)  # for `identity`
        return judge

    @property
    def sees_images(self) -> bool:
        """Whether verdicts depend on the pictures of a claim."""
        return False

    @abstractmethod
    async def judge(self, claim: Claim) -> Verdict | float:
        """Judge a claim.

        Returns:
            The verdict, or the score alone.

        Raises:
            JudgeError: When the judge fails. A failure is never reported as a score of 0. Set
                `caused_by_claim` if the claim is the cause, which then counts as wrong.
        """

    async def __call__(self, claim: Claim) -> Verdict:
        """The verdict that the subclass gives, checked."""
        answer = self.judge(claim)
        if not isinstance(answer, Awaitable):
            raise PartError.returned(self, "judge", answer, "write it as `async def judge`")
        verdict = await answer
        if isinstance(verdict, Real):
            return Verdict(float(verdict))
        if not isinstance(verdict, Verdict):
            raise PartError.returned(self, "judge", verdict, "return Verdict(score, reason)")
        return verdict

    async def probe(self) -> None:  # noqa: B027 (most judges have no endpoint)
        """Ask the judge's endpoint, if it has one, whether it answers. Called once at the start.

        Raises:
            JudgeError: When it does not answer.
        """

    async def close(self) -> None:  # noqa: B027 (most judges hold nothing)
        """Release what the judge holds, such as processes; it may be called more than once.

        Connections of a chat model need no closing: they end with their event loop.
        """

    def identity(self) -> str:
        """Return a text with all settings that affect verdicts; it is part of a cache's key.

        By default these are the class and all arguments that the judge was created with.
        """
        args, kwargs = self._settings
        written = [_written(value) for value in args]
        written += [f"{name}={_written(kwargs[name])}" for name in sorted(kwargs)]
        return f"{type(self).__module__}.{type(self).__qualname__}({', '.join(written)})"

    def metrics(self) -> Mapping[str, float]:
        """Return counts and sums since the judge was created."""
        return {}


def _written(setting: object) -> str:
    return setting.identity() if isinstance(setting, _Identified) else repr(setting)
