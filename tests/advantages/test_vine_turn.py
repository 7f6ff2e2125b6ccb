"""VineTurn by hand: sampled values as baselines and as what a turn is bootstrapped from."""

import math

import pytest
import torch

from vagentrl.advantages import Continuations, VineTurn, vine_turn
from vagentrl.errors import ConfigError

NAN = math.nan
# One token for each turn, except turn 1 of the first episode, which has two. Padding at the end.
MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]).bool()
TURNS = torch.tensor([[0, 1, 1, 2, -1], [0, 1, 2, -1, -1]])
REWARDS = torch.tensor([[1.0, 0.5, 0.5, 4.0, 9.0], [2.0, 0.0, 2.0, 9.0, 9.0]])
TOGETHER = torch.tensor([7, 7])


def advantages(continued: list[list[float]], **settings: float) -> list[list[float]]:
    discounts = {"turn_gamma": 1.0, "turn_lam": 0.0} | settings
    values = torch.tensor(continued)
    return vine_turn(REWARDS, MASK, TURNS, values, TOGETHER, **discounts).tolist()


def test_a_turn_earns_its_reward_and_the_gain_in_sampled_value():
    # First episode: V_0 = 4, the other's return; V_1 = 3; V_2 = 2.
    #   A_0 = 1 + 3 - 4 = 0, A_1 = 1 + 2 - 3 = 0, A_2 = 4 - 2 = 2
    # Second: V_0 = 6, V_1 = 5, V_2 = 1.  A_0 = 2 + 5 - 6 = 1, A_1 = 0 + 1 - 5 = -4, A_2 = 2 - 1 = 1
    found = advantages([[NAN, 3.0, 3.0, 2.0, NAN], [NAN, 5.0, 1.0, NAN, NAN]])
    assert found == [[0.0, 0.0, 0.0, 2.0, 0.0], [1.0, -4.0, 1.0, 0.0, 0.0]]


def test_the_rest_of_the_episode_counts_with_a_lambda_of_1():
    # T_k is then the return-to-go: 6, 5, 4 and 4, 2, 2, less V_k as above.
    found = advantages([[NAN, 3.0, 3.0, 2.0, NAN], [NAN, 5.0, 1.0, NAN, NAN]], turn_lam=1.0)
    assert found == [[2.0, 2.0, 2.0, 2.0, 0.0], [-2.0, -3.0, 1.0, 0.0, 0.0]]


def test_lambda_and_gamma_mix_and_discount():
    # gamma 1/2: returns of the episodes are 1 + 1/2 + 1 = 2.5 and 2 + 0 + 1/2 = 2.5, so both V_0.
    # First: A_2 = 4 - 2 = 2; A_1 = 1 + 1/2 (2 + 1/2 * 2) - 3 = -1/2;
    #   A_0 = 1 + 1/2 (3 + 1/2 * -1/2) - 2.5 = -1/8
    # Second: A_2 = 2 - 1 = 1; A_1 = 0 + 1/2 (1 + 1/2) - 5 = -4.25;
    #   A_0 = 2 + 1/2 (5 - 1/2 * 4.25) - 2.5 = 0.9375
    found = advantages(
        [[NAN, 3.0, 3.0, 2.0, NAN], [NAN, 5.0, 1.0, NAN, NAN]], turn_gamma=0.5, turn_lam=0.5
    )
    assert found == [[-0.125, -0.5, -0.5, 2.0, 0.0], [0.9375, -4.25, 1.0, 0.0, 0.0]]


def test_a_turn_without_continuations_shares_the_advantage_of_the_turn_before():
    # gamma 1/2, so both V_0 are 2.5. First episode: only V_2 = 2 is sampled.
    #   A_2 = 4 - 2 = 2; A_0 = 1 + 1/2 * 1 + 1/4 * 2 - 2.5 = -1/2, also for turn 1
    # Second: only V_1 = 5 is sampled.
    #   A_1 = 0 + 1/2 * 2 - 5 = -4, also for turn 2; A_0 = 2 + 1/2 * 5 - 2.5 = 2
    continued = [[NAN, NAN, NAN, 2.0, NAN], [NAN, 5.0, NAN, NAN, NAN]]
    found = advantages(continued, turn_gamma=0.5)
    assert found == [[-0.5, -0.5, -0.5, 2.0, 0.0], [2.0, -4.0, -4.0, 0.0, 0.0]]
    # With lambda 1/2: A_0 = -1/2 + 1/4 * 1/2 * 2 = -1/4, and 2 - 1/2 * 1/2 * 4 = 1
    found = advantages(continued, turn_gamma=0.5, turn_lam=0.5)
    assert found == [[-0.25, -0.25, -0.25, 2.0, 0.0], [1.0, -4.0, -4.0, 0.0, 0.0]]


def test_without_any_continuation_episodes_are_compared():
    # The returns are 6 and 4.
    found = advantages([[NAN] * 5, [NAN] * 5])
    assert found == [[2.0, 2.0, 2.0, 2.0, 0.0], [-2.0, -2.0, -2.0, 0.0, 0.0]]


def test_a_group_of_one_starts_from_a_baseline_of_0():
    values = torch.full((2, 5), NAN)
    alone = torch.tensor([3, 4])
    found = vine_turn(REWARDS, MASK, TURNS, values, alone, turn_gamma=1.0, turn_lam=0.0)
    assert found.tolist() == [[6.0, 6.0, 6.0, 6.0, 0.0], [4.0, 4.0, 4.0, 0.0, 0.0]]


def test_a_value_at_the_first_turn_is_ignored():
    known = [[NAN, 3.0, 3.0, 2.0, NAN], [NAN, 5.0, 1.0, NAN, NAN]]
    with_first = [[8.0, 3.0, 3.0, 2.0, NAN], [8.0, 5.0, 1.0, NAN, NAN]]
    assert advantages(with_first) == advantages(known)


def test_continuations_that_repeat_the_episode_leave_exactly_nothing():
    # 0.1 is not exact in float32, and the mean of the continuations is rounded to it.
    rewards = torch.full((2, 3), 0.1)
    mask, turns = torch.ones(2, 3).bool(), torch.tensor([[0, 1, 2], [0, 1, 2]])
    values = torch.tensor([[NAN, 0.195, 0.1], [NAN, 0.195, NAN]])
    found = vine_turn(rewards, mask, turns, values, TOGETHER, turn_gamma=0.95, turn_lam=0.5)
    assert found.count_nonzero() == 0


def test_the_defaults_are_those_of_the_docs():
    estimator = VineTurn()
    assert estimator.continuations == Continuations(count=2, every=2, horizon=None, turn_gamma=0.95)
    assert (estimator.turn_gamma, estimator.turn_lam, estimator.whiten) == (0.95, 0.0, True)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("continuations", 0), ("every", 0), ("horizon", 0), ("turn_lam", 1.5), ("turn_gamma", -0.1)],
)
def test_a_setting_that_cannot_work_is_named(setting: str, value: float):
    settings: dict = {setting: value}
    with pytest.raises(ConfigError, match=f"{setting} is {value}"):
        VineTurn(**settings)
