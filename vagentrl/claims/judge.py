"""What a judge is: it says how right an agent's claim about the state is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from vagentrl.errors import JudgeError
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
        if not 0 <= self.score <= 1:  # also when it is nan
            raise JudgeError(f"a verdict's score is {self.score}; a judge gives one from 0 to 1")


class Judge(ABC):
    """Scores claims; many at once."""

    @abstractmethod
    async def judge(self, claim: Claim) -> Verdict:
        """Judge a claim.

        Raises:
            JudgeError: When there is no verdict; that is never a score of 0.
        """

    def identity(self) -> str:
        """What decides the verdicts, and so belongs in the key of a cache."""
        return type(self).__name__

    def metrics(self) -> Mapping[str, float]:
        """Counts and sums since the judge was made."""
        return {}
