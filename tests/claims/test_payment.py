"""What claims earn, by hand and by properties."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.claims.claims import claim
from vagentrl.claims.judge import Verdict
from vagentrl.claims.judgement import Fault, Judgement
from vagentrl.claims.payment import mean_values, skill, turn_bonus, value
from vagentrl.types import ClaimKind

BOTH = {"observation": 0.5, "prediction": 0.25}
NO_MEANS: Mapping[str, float] = {}
SCORES = st.floats(0, 1)
SHARES = st.floats(0.01, 1)


def judged(score: float | None, kind: ClaimKind = "observation", **rest: Any) -> Judgement:
    second = rest.pop("second", None)
    return Judgement(
        claim("it is here", kind=kind),
        None if score is None else Verdict(score),
        second=None if second is None else Verdict(second),
        failure="no answer" if score is None else None,
        fault=rest.pop("fault", "transport" if score is None else None),
        **rest,
    )


def bonus(
    *judgements: Judgement, relative: bool = False, means: Mapping[str, float] = NO_MEANS
) -> float:
    return turn_bonus(judgements, BOTH, means, audited_share=0.25, relative=relative)


def test_a_claim_earns_its_coefficient_times_its_score():
    # 0.5 × 0.8 + 0.25 × 0.4
    assert bonus(judged(0.8), judged(0.4, "prediction")) == pytest.approx(0.5)
    assert bonus() == 0


def test_a_prediction_earns_its_skill_over_nothing_changes():
    # (0.8 - 0.6) / (1 - 0.6) = 0.5; worse than the baseline earns nothing; where nothing changed
    # nobody shows skill
    assert skill(0.8, 0.6) == pytest.approx(0.5)
    assert skill(0.5, 0.6) == 0
    assert skill(1.0, 1.0) == 0
    assert skill(0.8, None) == 0.8
    assert bonus(judged(0.8, "prediction", baseline=0.6)) == pytest.approx(0.125)


def test_a_failure_that_the_claim_caused_counts_as_wrong_and_another_as_the_mean():
    known = [judged(1.0), judged(0.5), judged(None, fault="claim")]
    means = mean_values([*known, judged(None)], 1.0)
    assert means == {"observation": 0.5}  # (1 + 0.5 + 0) / 3; the unknown one does not count
    assert bonus(judged(None, fault="claim"), means=means) == 0
    assert (
        bonus(judged(None, fault="judge"), means=means) == 0
    )  # a claim that breaks the judge's code
    assert bonus(judged(None), means=means) == 0.25


def test_an_audited_claim_is_paid_by_the_second_judge():
    # fooled: 1 + (0 - 1) / 0.25 = -3 in one of four, 1 in three of four: 0 in all
    assert value(judged(1.0, second=0.0), 0.25) == -3
    assert value(judged(1.0), 0.25) == 1
    # refused by the first judge and right: 0 + (1 - 0) / 0.25 = 4 in one of four: 1 in all
    assert value(judged(0.0, second=1.0), 0.25) == 4
    # agreement adds no variance
    assert value(judged(0.7, second=0.7), 0.25) == pytest.approx(0.7)
    # each judge's own baseline counts: first (1 - 1) → 0, second (0.5 - 0.2) / 0.8 = 0.375
    predicted = judged(1.0, "prediction", baseline=1.0, second=0.5, second_baseline=0.2)
    assert value(predicted, 1.0) == pytest.approx(0.375)


def test_an_unknown_score_that_was_audited_is_corrected_from_the_mean():
    # 0.5 + (1 - 0.5) / 0.25
    assert value(judged(None, second=1.0), 0.25, unknown=0.5) == 2.5


def test_a_penalty_takes_at_most_the_value():
    assert value(judged(0.6, penalty=0.25), 1.0) == pytest.approx(0.35)
    assert value(judged(0.6, penalty=1.0), 1.0) == 0
    # a template that is known to be bad is not punished again by its audit
    assert value(judged(1.0, penalty=1.0, second=0.0), 0.05) == 0


def test_relative_rewards_move_all_turns_alike():
    means = {"observation": 0.6, "prediction": 0.2}
    # the claims are worth 0.5 × 1 + 0.25 × 0; the means 0.5 × 0.6 + 0.25 × 0.2 = 0.35
    assert bonus(judged(1.0), judged(0.0, "prediction"), relative=True, means=means) == (
        pytest.approx(0.15)
    )
    assert bonus(relative=True, means=means) == pytest.approx(-0.35)


def test_a_mean_below_0_is_0_so_that_no_batch_pays_for_malformed_replies():
    assert mean_values([judged(1.0, second=0.0)], 0.1) == {"observation": 0.0}


@given(SCORES, SCORES, SHARES, st.floats(0, 3), st.none() | SCORES, st.none() | SCORES)
def test_the_expected_payment_is_the_second_judges(
    first: float,
    second: float,
    share: float,
    penalty: float,
    baseline: float | None,
    second_baseline: float | None,
):
    alone = judged(first, penalty=penalty, baseline=baseline)
    audited = replace(alone, second=Verdict(second), second_baseline=second_baseline)
    expected = (1 - share) * value(alone, share) + share * value(audited, share)
    assert expected == pytest.approx(skill(second, second_baseline), abs=1e-9)


FAULTS = st.sampled_from(["claim", "judge", "transport"])


@given(st.none() | SCORES, FAULTS, st.none() | SCORES, st.floats(0, 3), SCORES, st.booleans())
def test_no_claim_earns_less_than_a_malformed_reply(
    score: float | None,
    fault: Fault,
    baseline: float | None,
    penalty: float,
    mean: float,
    relative: bool,
):
    made = judged(score, fault=fault, baseline=baseline, penalty=penalty)
    assert bonus(made, relative=relative, means={"observation": mean}) >= bonus(
        relative=relative, means={"observation": mean}
    )


@given(SCORES, SCORES, st.none() | SCORES, st.floats(0, 1))
def test_a_better_score_never_earns_less(
    one: float, other: float, baseline: float | None, penalty: float
):
    low, high = sorted((one, other))
    worth = [value(judged(s, baseline=baseline, penalty=penalty), 1.0) for s in (low, high)]
    assert worth[0] <= worth[1]


@given(st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=8), SHARES)
def test_the_mean_of_a_kind_is_never_negative_and_knows_no_other_kind(
    scored: list[tuple[float, bool]], share: float
):
    made = [judged(s, second=0.0 if audited else None) for s, audited in scored]
    means = mean_values(made, share)
    assert means.keys() == {"observation"} and means["observation"] >= 0
