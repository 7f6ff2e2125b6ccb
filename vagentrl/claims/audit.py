"""A second judge for a sample of the claims."""

from __future__ import annotations

from vagentrl.claims.judge import Claim, Judge
from vagentrl.claims.judgement import Judgement, drawn
from vagentrl.errors import ConfigError


class Audit:
    """Sends a sample of the claims to a second judge.

    An audited claim is paid by the second judge, corrected for the claims that are not audited, so
    that every claim's expected payment is the second judge's (`vagentrl.claims.payment`). The
    correction is the difference of the two scores, divided by `share`: a small share saves
    requests and makes rewards noisier wherever the judges disagree.

    Every claim of every episode is drawn on its own, so a text that is written again and again is
    audited again and again.

    Args:
        judge: The second judge; a slower, more expensive or stricter one that fails in other ways
            than the first.
        share: Probability with which a claim is audited. Give 1 to a judge that costs nothing.
        tolerance: Largest difference of the two scores that is not a disagreement.
        seed: Seed of the draw.
    """

    def __init__(
        self, judge: Judge, share: float = 0.25, tolerance: float = 0.25, seed: int = 0
    ) -> None:
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
        self.seed = seed

    def samples(self, claim: Claim, *occurrence: int | str) -> bool:
        """Whether the second judge gets this claim.

        Args:
            claim: The claim.
            occurrence: What tells this occurrence of the claim from others with the same text: the
                version of the policy, the episode and the turn.
        """
        return drawn(self.share, "audit", self.seed, claim.kind, claim.text, *occurrence)

    def disagrees(self, judgement: Judgement) -> bool:
        """Whether both judges gave a verdict and their scores differ by more than the tolerance."""
        first, second = judgement.verdict, judgement.second
        if first is None or second is None:
            return False
        return abs(first.score - second.score) > self.tolerance
