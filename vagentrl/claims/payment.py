"""What a claim earns: a pure function of what the judges said, with the reason for each rule.

The value of a claim is at least 0 in expectation, and a malformed reply earns exactly 0. So writing
claims never pays less than not writing them.

1. *A claim that the judge cannot read counts as wrong*: one that its model refuses, and one on
   which its code fails. Otherwise an agent that is unsure writes what cannot be judged.
2. *A failure of the transport says nothing about the claim*, which gets the mean value of its kind.
3. *A prediction is paid for skill*, as in forecasting: for what it knows beyond the forecast that
   nothing changes. Where that forecast is right, there is nothing to gain, whatever is claimed; so
   neither copying the observation nor walking into walls pays.
4. *A penalty takes away at most the whole value*, because a claim that is worth less than none
   would make a malformed reply the better choice.
5. *An audited claim is paid by the second judge*. With the first judge's value `a`, the second's
   `b` and a probability `p` of an audit, the claim earns `a` if it is not audited, and
   `a + (b - a) / p` if it is. Its expected payment is `(1 - p) a + p (a + (b - a) / p) = b`:
   fooling the first judge earns nothing on average, and where both judges agree the audit adds no
   variance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from vagentrl.claims.judgement import Judgement


def skill(score: float, baseline: float | None) -> float:
    """The share of what the baseline leaves open that a score gains; 0 if that is nothing.

    Args:
        score: Score of the claim, from 0 to 1.
        baseline: Score of the claim that nothing changes; None to return the score itself.
    """
    if baseline is None:
        return score
    if baseline >= 1:
        return 0.0
    return max(0.0, (score - baseline) / (1 - baseline))


def first_value(judgement: Judgement) -> float | None:
    """What the claim is worth to the first judge, from 0 to 1; None if that is unknown."""
    if judgement.verdict is None:
        return None if judgement.fault == "transport" else 0.0
    return max(0.0, skill(judgement.verdict.score, judgement.baseline) - judgement.penalty)


def value(judgement: Judgement, audited_share: float, unknown: float = 0.0) -> float:
    """What the claim is worth.

    Args:
        judgement: The result of judging the claim.
        audited_share: Probability with which claims are audited; it counts only if this one was.
        unknown: Value of a claim whose score is unknown.

    Returns:
        From 0 to 1 for a claim that was not audited. That of an audited claim may lie outside, but
        its mean over audits is the second judge's value.
    """
    first = first_value(judgement)
    if first is None:
        first = unknown
    if judgement.second is None:
        return first
    second = skill(judgement.second.score, judgement.second_baseline)
    return first + (second - first) / audited_share


def mean_values(judgements: Iterable[Judgement], audited_share: float) -> dict[str, float]:
    """The mean value of the claims of each kind that have a score; it is never negative."""
    known: defaultdict[str, list[float]] = defaultdict(list)
    for judgement in judgements:
        if first_value(judgement) is not None:
            known[judgement.claim.kind].append(value(judgement, audited_share))
    return {kind: max(0.0, sum(values) / len(values)) for kind, values in known.items()}


def turn_bonus(
    judgements: Iterable[Judgement],
    coefficients: Mapping[str, float],
    means: Mapping[str, float],
    *,
    audited_share: float,
    relative: bool,
) -> float:
    """What the claims of one turn earn together; 0, less what `relative` subtracts, for none.

    Args:
        judgements: The results of judging the turn's claims; none for a malformed reply.
        coefficients: For each kind of claim, the reward of a value of 1.
        means: The batch's mean value of each kind of claim, as of `mean_values`.
        audited_share: Probability with which claims are audited.
        relative: Whether to subtract the mean of each kind of the batch from every turn, whether it
            makes claims or not. This moves all turns alike, so it makes no reply the better choice.
    """
    earned = sum(
        coefficients[judgement.claim.kind]
        * value(judgement, audited_share, means.get(judgement.claim.kind, 0.0))
        for judgement in judgements
    )
    if relative:
        earned -= sum(coefficients[kind] * mean for kind, mean in means.items())
    return earned
