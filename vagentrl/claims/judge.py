"""The `Judge` interface: scores an agent's claim about the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from numbers import Real

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


class Judge(ABC):
    """Scores claims; many coroutines call the judge concurrently.

    The trainer calls the judge itself, which checks what `judge` returns.
    """

    @abstractmethod
    async def judge(self, claim: Claim) -> Verdict:
        """Judge a claim.

        Raises:
            JudgeError: When the judge fails. A failure is never reported as a score of 0.
        """

    async def __call__(self, claim: Claim) -> Verdict:
        """The verdict that the subclass gives, checked."""
        answer = self.judge(claim)
        if not isinstance(answer, Awaitable):
            raise PartError.returned(self, "judge", answer, "write it as `async def judge`")
        verdict = await answer
        if not isinstance(verdict, Verdict):
            raise PartError.returned(self, "judge", verdict, "return Verdict(score, reason)")
        return verdict

    def identity(self) -> str:
        """Return a text with all settings that affect verdicts; it is part of a cache's key."""
        return type(self).__name__

    def metrics(self) -> Mapping[str, float]:
        """Return counts and sums since the judge was created."""
        return {}
