"""Equal returns give advantages of exactly 0, whatever the lengths of the replies."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vagentrl.advantages import (
    EpisodeEstimator,
    GiGPO,
    GroupRelative,
    ReinforcePlusPlus,
    TurnGroupRelative,
    VineTurn,
    group_relative,
    whiten,
)
from vagentrl.types import RolloutBatch, Scores

ESTIMATORS = [
    GroupRelative(),
    GroupRelative(scale=None),
    GroupRelative(scale=None, baseline="leave_one_out"),
    TurnGroupRelative(turn_gamma=0.95),
    GiGPO(turn_gamma=0.95),
    GiGPO(scale=None),
    VineTurn(),
]


def rollout_of(members: Sequence[Sequence[tuple[float, int]]]) -> RolloutBatch:
    """One row per member, with turns of (reward, tokens); rewards are on a turn's last token."""
    width = max(sum(length for _, length in turns) for turns in members)
    rewards = torch.zeros(len(members), width)
    turn_ids = torch.full((len(members), width), -1)
    for row, turns in enumerate(members):
        column = 0
        for number, (reward, length) in enumerate(turns):
            turn_ids[row, column : column + length] = number
            column += length
            rewards[row, column - 1] = reward
    number_of = torch.arange(len(members))
    return RolloutBatch(
        input_ids=torch.zeros_like(turn_ids),
        attention_mask=turn_ids >= 0,
        action_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        state_ids=turn_ids,  # all members see the same in the same turn
        rewards=rewards,
        rollout_logprobs=torch.zeros_like(rewards),
        trajectory_ids=number_of,
        group_ids=torch.zeros_like(number_of),
        policy_version=torch.zeros_like(turn_ids),
        bootstrap_index=torch.full_like(number_of, -1),
    )


def advantages(estimator: EpisodeEstimator, members: Sequence[Sequence[tuple[float, int]]]):
    rollout = rollout_of(members)
    return estimator(rollout, Scores(torch.zeros_like(rollout.rewards))).advantages


rewards = st.builds(
    lambda offset, scale, rewards: [offset + scale * reward for reward in rewards],
    st.sampled_from([0.0, 0.0, 10.9, -1e6, 1e6]),
    st.sampled_from([1e-6, 1e-3, 1.0, 1e6]),
    st.lists(st.sampled_from([-0.1, 0.0, 0.1, 0.3, 1.0, 10.9]), min_size=1, max_size=6),
)


@st.composite
def members(draw: st.DrawFn) -> list[list[tuple[float, int]]]:
    """Members with equal rewards in every turn, but replies of different lengths."""
    earned = draw(rewards)
    lengths = st.lists(st.integers(1, 40), min_size=len(earned), max_size=len(earned))
    return [list(zip(earned, draw(lengths), strict=True)) for _ in range(draw(st.integers(2, 8)))]


every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


@every_estimator
@given(played=members())
def test_equal_rewards_give_exactly_0(estimator: EpisodeEstimator, played):
    assert not advantages(estimator, played).any()


@every_estimator
def test_eight_replies_that_earn_11_are_equal(estimator: EpisodeEstimator):
    """Summed in float32, such returns differ by up to 1e-6, as much as is added to a deviation."""
    earned = [-0.1, 1.0, -0.1, 0.3, 10.9, -0.1, -0.1, -0.1]
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 60, (8, len(earned)), generator=generator).tolist()
    assert not advantages(
        estimator, [list(zip(earned, each, strict=True)) for each in lengths]
    ).any()


@given(played=members(), shuffle=st.randoms(use_true_random=False))
def test_the_order_in_which_a_return_is_earned_does_not_count(played, shuffle):
    for turns in played:
        shuffle.shuffle(turns)
    assert not advantages(GroupRelative(), played).any()


def test_what_decimals_lose_in_float32_is_no_difference():
    # 0.9 + 9.9 = 10.9 - 0.1, but in float32 they differ by 4e-7; and ten times 0.1 are 1.5e-8 off 1
    split = [[(0.9, 2), (9.9, 3)], [(10.9, 4), (-0.1, 1)]]
    assert not advantages(GroupRelative(), split).any()
    cancelled = [[(-0.1, 2)] * 10 + [(1.0, 1)], [(0.0, 3)] * 11]
    assert not advantages(GroupRelative(), cancelled).any()


@given(
    outcome=st.sampled_from([0.1, 10.9, 1e6, -1e6, 1e-4]),
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=8),
)
def test_equal_outcomes_give_exactly_0_to_reinforce_with_a_baseline(outcome, lengths):
    played = [[(outcome, length)] for length in lengths]
    assert not advantages(ReinforcePlusPlus(baseline=True), played).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(value=st.floats(-1e6, 1e6, width=32), count=st.integers(2, 50))
def test_equal_values_whiten_to_exactly_0(dtype: torch.dtype, value: float, count: int):
    values = torch.full((count,), value, dtype=dtype)
    assert not whiten(values, torch.ones(count, dtype=torch.bool)).any()


@pytest.mark.parametrize("offset", [0.0, 10.9, 1e6])
def test_a_real_difference_still_counts(offset: float):
    # two values are sqrt(1/2) sample deviations from their mean, wherever they lie
    returns = torch.tensor([0.0, 0.2], dtype=torch.float64) + offset
    actual = group_relative(returns, torch.zeros(2, dtype=torch.long))
    expected = torch.tensor([-(0.5**0.5), 0.5**0.5], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_the_noise_of_returns_can_be_given():
    returns, groups = torch.tensor([1.0, 1.1]), torch.zeros(2, dtype=torch.long)
    assert group_relative(returns, groups, scale=None).any()
    noise = torch.tensor([0.0, 0.2])
    assert not group_relative(returns, groups, scale=None, noise=noise).any()


def test_rewards_that_differ_in_one_turn_only_count_in_that_turn():
    played = rollout_of([[(1.0, 3), (0.0, 2)], [(0.0, 5), (0.0, 1)]])
    nothing = Scores(torch.zeros_like(played.rewards))
    credit = TurnGroupRelative(turn_gamma=1.0)(replace(played), nothing).advantages
    assert credit[0, :3].tolist() == [1.0] * 3 and credit[1, :5].tolist() == [-1.0] * 5
    assert not credit[0, 3:].any() and not credit[1, 5:].any()


@pytest.mark.parametrize(
    "estimator", [TurnGroupRelative(turn_gamma=1.0), GiGPO(turn_gamma=1.0), GiGPO(step_coef=0.0)]
)
def test_rewards_that_cancel_leave_no_difference_either(estimator: EpisodeEstimator):
    # in float32 1.1 - 1 - 0.1 is 2e-8, which is less than 1.1 is off by
    played = [[(1.1, 2), (-1.0, 1), (-0.1, 3)], [(0.0, 1)] * 3]
    first_turns = advantages(estimator, played)[[0, 0, 1], [0, 1, 0]]
    assert first_turns.tolist() == [0, 0, 0]
