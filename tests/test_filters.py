from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import toy
from vagentrl.errors import ConfigError
from vagentrl.filters import (
    NO_SPREAD,
    DynamicSampling,
    GroupFilter,
    KeepAll,
    Nucleus,
    TopFraction,
    select_groups,
)
from vagentrl.types import Trajectory

SPREADS = [0.1, 0.4, 0.0, 0.5]


def kept(filter: GroupFilter, spreads: list[float] = SPREADS) -> list[int]:
    return [group for group, keep in enumerate(filter.keep(spreads)) if keep]


def test_a_fraction_of_the_groups_is_kept_those_that_differ_most():
    assert kept(TopFraction(0.25)) == [3]
    assert kept(TopFraction(0.5)) == [1, 3]
    assert kept(TopFraction(0.75)) == [0, 1, 3]
    assert kept(TopFraction(1.0)) == [0, 1, 3]  # one that never differs is worth nothing
    assert kept(TopFraction(0.01)) == [3]  # one at least
    assert kept(TopFraction(0.5), [0.2, 0.2, 0.2, 0.2]) == [0, 1]  # ties: the first


def test_a_nucleus_is_the_fewest_groups_with_that_share_of_the_spread():
    # the sum is 1.0; ranked 0.5, 0.4, 0.1, 0.0
    assert kept(Nucleus(0.5)) == [3]
    assert kept(Nucleus(0.51)) == [1, 3]
    assert kept(Nucleus(0.9)) == [1, 3]
    assert kept(Nucleus(0.91)) == [0, 1, 3]
    assert kept(Nucleus(1.0)) == [0, 1, 3]


def test_dynamic_sampling_keeps_whatever_differs():
    assert kept(DynamicSampling()) == [0, 1, 3]
    assert kept(DynamicSampling(min_std=0.1)) == [1, 3]


def test_without_any_spread_only_keep_all_keeps():
    for filter in (TopFraction(1.0), Nucleus(1.0), DynamicSampling()):
        assert kept(filter, [0.0, 0.0]) == []
        assert kept(filter, []) == []
    assert kept(KeepAll(), [0.0, 0.0]) == [0, 1]


spread = st.just(0.0) | st.floats(1e-3, 10)


@given(st.lists(spread, min_size=1, max_size=20), st.floats(0.01, 1))
def test_a_nucleus_holds_its_share_and_no_group_too_many(spreads: list[float], share: float):
    held = sorted((spreads[group] for group in kept(Nucleus(share), spreads)), reverse=True)
    assert sum(held) >= share * sum(spreads) * (1 - 1e-6)
    assert sum(held[:-1]) <= share * sum(spreads) * (1 + 1e-6)


def test_groups_are_taken_whole():
    # returns of seed 1 (two left): 1 - 0.25 = 0.75 at best, -0.25 for every wait
    def episode(group: int, waits: int) -> Trajectory:
        return toy.play([*[toy.WAIT] * waits, toy.GO, toy.GO], seed=1, group_id=group)

    played = [episode(4, 0), episode(4, 0), episode(9, 0), episode(9, 2), episode(7, 1)]
    groups, spreads = select_groups(played, TopFraction(0.5))
    assert [[t.group_id for t in group] for group in groups] == [[9, 9]]
    # 0.75 and 0.25: mean 0.5, squares 2 * 0.0625, one less than two members, so sqrt(0.125)
    assert spreads == pytest.approx([0.0, 0.125**0.5, 0.0])


def rewarded(group: int, *rewards: float) -> Trajectory:
    """An episode whose turns earned these rewards."""
    [turn] = toy.play([toy.GO], seed=0).turns
    turns = tuple(replace(turn, reward=reward) for reward in rewards)
    return replace(toy.play([toy.GO], seed=0), group_id=group, turns=turns)


@pytest.mark.parametrize(
    "filter", [TopFraction(1.0), Nucleus(1.0), DynamicSampling(min_std=0.0)], ids=lambda f: type(f)
)
def test_what_rounding_makes_of_equal_returns_is_no_spread(filter: GroupFilter):
    # in Python, 0.1 + 0.2 - 0.3 is 5.6e-17, ten times 0.1 less 1 is -1.1e-16
    equal = [rewarded(0, 0.1, 0.2, -0.3), rewarded(0, 0.0), rewarded(0, *[0.1] * 10, -1.0)]
    large = [rewarded(1, 1e6, 0.1, 0.2), rewarded(1, 1e6, 0.3), rewarded(1, 0.3, 1e6)]
    differs = [rewarded(2, 1e6, 1.0), rewarded(2, 1e6, 2.0)]
    groups, spreads = select_groups([*equal, *large, *differs], filter)
    assert [group[0].group_id for group in groups] == [2]
    assert spreads[:2] == [0.0, 0.0]
    assert spreads[2] == pytest.approx(0.5**0.5)


@given(
    rewards=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
    orders=st.lists(st.randoms(use_true_random=False), min_size=2, max_size=5),
)
def test_members_that_earn_the_same_in_another_order_have_no_spread(rewards, orders):
    members = [rewarded(0, *order.sample(rewards, len(rewards))) for order in orders]
    assert select_groups(members, KeepAll())[1] == [0.0]


def test_rounding_goes_by_all_that_a_member_earned_bonuses_included():
    # The first turn earned 1 and a bonus of 1, the second -2: the sum is 0, of 4 in all. Rounding
    # to float32 may then account for a difference of 4 * 2**-23, and of no more.
    cancelled = rewarded(0, 1.0, -2.0)
    first, second = cancelled.turns
    cancelled = replace(cancelled, turns=(replace(first, bonus=1.0), second))
    for difference, spread in ((4 * 2.0**-23, 0.0), (5 * 2.0**-23, 5 * 2.0**-23 / 2**0.5)):
        members = [cancelled, rewarded(0, difference)]
        assert select_groups(members, KeepAll())[1] == pytest.approx([spread])


def test_settings_that_are_left_out():
    assert (TopFraction().fraction, TopFraction().rescale) == (0.25, False)
    assert (Nucleus().share, Nucleus().rescale) == (0.9, False)
    assert (DynamicSampling().rounds, DynamicSampling().rescale) == (3, False)
    assert (KeepAll().rounds, KeepAll().rescale) == (1, False)
    assert TopFraction(rescale=True).rescale and Nucleus(rescale=True).rescale


def test_a_ranking_ignores_spreads_that_are_nothing():
    assert kept(TopFraction(1.0), [NO_SPREAD, 2 * NO_SPREAD]) == [1]
    assert kept(TopFraction(1.0), [1e-15, 0.2]) == [1]
    assert kept(Nucleus(1.0), [1e-15, 0.2]) == [1]
    assert kept(TopFraction(1.0), [1e-15, 1e-15]) == []


def test_filters_that_keep_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"TopFraction\.fraction is 0.*keeps nothing"):
        TopFraction(0)
    with pytest.raises(ConfigError, match=r"Nucleus\.share is 1.5"):
        Nucleus(1.5)
    with pytest.raises(ConfigError, match=r"DynamicSampling\.rounds is 0"):
        DynamicSampling(rounds=0)
    with pytest.raises(ConfigError, match=r"DynamicSampling\.min_std is -1"):
        DynamicSampling(min_std=-1)


def test_one_round_of_resampling_is_enough():
    assert DynamicSampling(rounds=1).rounds == 1
