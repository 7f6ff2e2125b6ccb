"""What the detector takes for signs of trouble, besides a loss of success."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WEAK, STRONG, ENOUGH = 1, 2, 3
"""Weights of evidence: an alarm takes `ENOUGH` in all."""

Kind = Literal["progress", "reward", "signal", "variety", "stability"]

KINDS: dict[Kind, str] = {
    "progress": "the agent does worse",
    "reward": "bonuses rise without the success",
    "signal": "groups have less to compare",
    "variety": "replies become alike",
    "stability": "the update is unstable",
}
"""What each kind of trouble means, in words."""


@dataclass(frozen=True)
class Sign:
    """A change of one number, since the success last rose, that is a sign of trouble.

    Attributes:
        name: The number in `Vitals.numbers`.
        kind: The kind of trouble.
        words: What the number is, in a warning.
        factor: It is a sign above this multiple of what it was; below, if it is a fall.
        plus: Added to the multiple.
        weight: How strong the evidence is.
        fall: Whether a fall is the sign, and not a rise.
        worse: Whether it is a sign only if the success, or that of held-out episodes, is below its
            best by more than a standard error: at the ceiling the number changes by itself.
    """

    name: str
    kind: Kind
    words: str
    factor: float
    plus: float = 0.0
    weight: int = WEAK
    fall: bool = False
    worse: bool = False

    def shows(self, now: float, before: float) -> bool:
        """Whether the number has changed as far; never where one of the two is NaN."""
        limit = self.factor * before + self.plus
        return now < limit if self.fall else now > limit


SIGNS = (
    Sign("failed_alike", "signal", "groups in which all episodes fail alike", 1.0, 0.15, STRONG),
    Sign("group_std", "signal", "spread of returns within groups", 0.6, fall=True, worse=True),
    Sign("entropy", "variety", "token entropy", 0.7, fall=True),
    Sign("similarity", "variety", "likeness of replies to different prompts", 1.25, 0.04, STRONG),
    Sign("opening_share", "variety", "share of the most frequent opening", 1.25, 0.08, STRONG),
    Sign("template_share", "variety", "share of the most frequent template", 1.25, 0.08, STRONG),
    Sign("repeated_within", "variety", "repetition within replies", 1.25, 0.08, STRONG),
    Sign(
        "mutual_information", "variety", "information of prompts on replies", 0.6, -0.1, fall=True
    ),
    Sign("without_thought", "variety", "replies without a thought", 1.0, 0.2),
    Sign("entropy", "stability", "token entropy", 1.5),
    Sign("approximate_kl", "stability", "step of the policy", 3.0, 0.03, STRONG, worse=True),
    Sign("malformed_replies", "stability", "malformed replies", 1.0, 0.1, STRONG),
)
