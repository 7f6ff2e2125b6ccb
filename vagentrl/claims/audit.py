"""A second judge for a sample of the claims."""

from __future__ import annotations

from vagentrl.claims.judge import Claim, Judge
from vagentrl.claims.judgement import Judgement, sampled
from vagentrl.errors import ConfigError


class Audit:
    """Sends a sample of the claims to a second judge.

    The audit itself changes no reward: disagreements are counted and logged, and
    `TemplatePenalty` uses the second judge's scores. Whether a claim is sampled depends only on
    the claim's content.

    Args:
        judge: The second judge; a slower, more expensive or stricter one that fails in other ways
            than the first.
        share: Fraction of the claims to sample.
        tolerance: Largest difference of the two scores that is not a disagreement.
    """

    def __init__(self, judge: Judge, share: float = 0.05, tolerance: float = 0.25) -> None:
        if not 0 < share <= 1:
            raise ConfigError(f"Audit.share is {share}; give a number above 0, up to 1")
        if not 0 <= tolerance < 1:
            raise ConfigError(
                f"Audit.tolerance is {tolerance}; scores lie between 0 and 1, so give a number "
                "from 0 to below 1"
            )
        self.judge = judge
        self.share = share
        self.tolerance = tolerance

    def samples(self, claim: Claim) -> bool:
        """Whether the second judge gets this claim."""
        return sampled(self.share, "audit", claim)

    def disagrees(self, judgement: Judgement) -> bool:
        """Whether both judges gave a verdict and their scores differ by more than the tolerance."""
        first, second = judgement.verdict, judgement.second
        if first is None or second is None:
            return False
        return abs(first.score - second.score) > self.tolerance
