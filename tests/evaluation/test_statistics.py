"""Estimates from several episodes of a seed."""

import numpy as np
import pytest

from vagentrl.evaluation import paired_difference, pass_at_k


@pytest.mark.parametrize(
    ("successes", "k", "wanted"),
    [
        ([(1, 2)], 1, 0.5),
        ([(1, 2)], 2, 1.0),
        ([(1, 4)], 2, 0.5),  # 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6
        ([(1, 4), (0, 4)], 2, 0.25),
        ([(2, 4)], 3, 1.0),  # three of four episodes cannot miss both
        ([(0, 3)], 3, 0.0),
    ],
)
def test_pass_at_k(successes: list[tuple[int, int]], k: int, wanted: float):
    assert pass_at_k(successes, k) == pytest.approx(wanted)


def test_a_difference_that_every_seed_shows_is_not_chance():
    found = paired_difference([1.0] * 8)
    assert (found.mean, found.low, found.high, found.seeds) == (1.0, 1.0, 1.0, 8)
    assert found.p == pytest.approx(2 / 2**8, abs=0.003)  # all signs alike, one way or the other


def test_no_difference_is_none():
    assert paired_difference([0.0] * 5) == (0.0, 0.0, 0.0, 1.0, 5)
    assert paired_difference([0.5]).p == 1.0  # one seed tells nothing


def test_the_order_of_the_policies_changes_the_sign_alone():
    values = [0.5, 0.25, 0.0, -0.25, 1.0, 0.5]
    one, other = paired_difference(values), paired_difference([-value for value in values])
    assert other.mean == -one.mean
    assert other.p == pytest.approx(one.p, abs=0.02)
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=0.1)


def test_a_p_value_below_a_twentieth_comes_once_in_twenty_nulls():
    rng = np.random.default_rng(3)
    nulls = [paired_difference(rng.choice((-1.0, 0.0, 1.0), size=40).tolist()) for _ in range(300)]
    low = sum(found.p < 0.05 for found in nulls) / len(nulls)
    assert 0.01 < low < 0.1
    inside = sum(found.low <= 0 <= found.high for found in nulls) / len(nulls)
    assert inside > 0.88
