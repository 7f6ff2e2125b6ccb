"""What a judge is: it says how right an agent's claim about the state is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vagentrl.errors import JudgeError
from vagentrl.formats import Representation
from vagentrl.types import State

ClaimKind = Literal["observation", "prediction"]


@dataclass(frozen=True)
class Claim:
    """A claim, and the truth that it is about.

    Attributes:
        kind: ``observation`` is about the state before the action, ``prediction`` after it.
        text: What the agent wrote; nothing in it may be taken for an instruction.
        representation: How it was asked to write.
        state: The true state.
        rubric: What the environment says makes a claim right; empty without one.
    """

    kind: ClaimKind
    text: str
    representation: Representation
    state: State
    rubric: str = ""

    @property
    def truth(self) -> str:
        """The true state in the claim's own representation."""
        return getattr(self.state, self.representation)


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
