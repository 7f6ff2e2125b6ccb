"""The numbers that the detector of echo traps compares, by hand."""

import math

import pytest

from vagentrl.callbacks.echo_trap.vitals import Estimate, Vitals, robust_score, smoothed

NAN = math.nan


def test_a_robust_score_by_hand():
    # logs 0, 0, ±1, 4: median 0, deviations 0, 0, 1, 1, 4: MAD 1; log 20.0855 = 3
    earlier = [1.0, 1.0, math.e, 1 / math.e, math.e**4]
    assert robust_score(math.e**3, earlier) == pytest.approx(3 / 1.4826)


def test_a_norm_that_never_changes_is_compared_by_a_tenth():
    assert robust_score(math.e, [1.0] * 5) == pytest.approx(1 / 0.1)


@pytest.mark.parametrize(
    ("norm", "earlier"),
    [(NAN, [1.0] * 5), (0.0, [1.0] * 5), (math.inf, [1.0] * 5), (2.0, [1.0] * 4)],
)
def test_a_norm_that_cannot_be_compared_has_no_score(norm: float, earlier: list[float]):
    assert math.isnan(robust_score(norm, earlier))
    assert math.isnan(robust_score(norm, [*earlier[:4], NAN]))


def test_numbers_that_are_not_known_are_left_out_of_the_mean():
    recent = [
        Vitals(4, Estimate(0.25, 0.3), Estimate(1.0, 0.3), 8, {"entropy": 1.0}),
        Vitals(5, Estimate(NAN, NAN), Estimate(NAN, NAN), 8, {"entropy": NAN}),
        Vitals(6, Estimate(0.5, 0.4), Estimate(3.0, 0.4), 8, {"entropy": 3.0}),
    ]
    # errors: the root of 0.09 + 0.16, divided by 2
    both = Estimate(0.375, 0.25), Estimate(2.0, 0.25)
    assert smoothed(recent) == Vitals(6, *both, 24, {"entropy": 2.0})
