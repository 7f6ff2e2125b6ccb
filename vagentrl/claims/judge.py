"""What a judge is: it says how right an agent's claim about the state is."""

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
    """How right a claim is.

    Attributes:
        score: From 0 (all wrong) to 1 (all right).
        reason: What was right or wrong with it, for the log.
    """

    score: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.score, Real) or not 0 <= self.score <= 1:  # NaN is neither
            raise JudgeError(
                f"a verdict's score is {seen(self.score)}; a judge gives a number from 0 to 1"
            )


class Judge(ABC):
    """Scores claims; many at once.

    The trainer calls the judge itself, which checks what `judge` returns.
    """

    @abstractmethod
    async def judge(self, claim: Claim) -> Verdict:
        """Judge a claim.

        Raises:
            JudgeError: When there is no verdict; that is never a score of 0.
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
        """What decides the verdicts, and so belongs in the key of a cache."""
        return type(self).__name__

    def metrics(self) -> Mapping[str, float]:
        """Counts and sums since the judge was made."""
        return {}
