"""The `Judge` interface: scores an agent's claim about the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from vagentrl.errors import JudgeError
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
        if not 0 <= self.score <= 1:  # also rejects nan
            raise JudgeError(f"a verdict's score is {self.score}; scores must be from 0 to 1")


class Judge(ABC):
    """Scores claims; many coroutines call `judge` concurrently."""

    @abstractmethod
    async def judge(self, claim: Claim) -> Verdict:
        """Judge a claim.

        Raises:
            JudgeError: When the judge fails. A failure is never reported as a score of 0.
        """

    def identity(self) -> str:
        """Return a text with all settings that affect verdicts; it is part of a cache's key."""
        return type(self).__name__

    def metrics(self) -> Mapping[str, float]:
        """Return counts and sums since the judge was created."""
        return {}
