"""A second opinion on some verdicts."""

from __future__ import annotations

from vagentrl.claims.judge import Claim, Judge
from vagentrl.claims.judgement import Judgement, sampled
from vagentrl.errors import ConfigError


class Audit:
    """Has a sample of the claims judged a second time, by another judge.

    It changes no reward by itself: a disagreement is counted and logged, and `TemplatePenalty`
    believes the second judge. Which claims are sampled depends on nothing but what they say.

    Args:
        judge: The second judge: one that is slower, dearer or stricter, and fooled by other things.
        share: Share of the claims that it judges too.
        tolerance: How far apart two scores may be without a disagreement.
    """

    def __init__(self, judge: Judge, share: float = 0.05, tolerance: float = 0.25) -> None:
        if not 0 < share <= 1:
            raise ConfigError(f"Audit.share is {share}; give a share above 0, up to 1")
        if not 0 <= tolerance < 1:
            raise ConfigError(
                f"Audit.tolerance is {tolerance}; scores lie between 0 and 1, so give 0 up to "
                "below 1"
            )
        self.judge = judge
        self.share = share
        self.tolerance = tolerance

    def samples(self, claim: Claim) -> bool:
        """Whether this claim is judged twice."""
        return sampled(self.share, "audit", claim)

    def disagrees(self, judgement: Judgement) -> bool:
        """Whether both judges spoke, and their scores are too far apart."""
        first, second = judgement.verdict, judgement.second
        if first is None or second is None:
            return False
        return abs(first.score - second.score) > self.tolerance
