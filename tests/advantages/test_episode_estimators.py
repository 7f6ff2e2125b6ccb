"""The estimators without a critic: worked by hand, and against slow loops over Python floats."""

from statistics import mean, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.advantages.ragged import Batch, batches, discount, loop_turns, make_batch
from vagentrl.advantages import gigpo, reinforce_plus_plus, turn_group_relative

# ------------------------------------------------------------------------------------ by hand

# trajectory 0: turn 0 of two tokens and turn 1 of one; trajectory 1: a turn of one token. Values
# off the action mask are 99, so that using one would be noticed.
TURNS = torch.tensor([[0, 0, -1, 1], [-1, 0, -1, -1]])
MASK = TURNS >= 0
REWARDS = torch.tensor([[0.0, 1.0, 99.0, 3.0], [99.0, 2.0, 99.0, 99.0]])
GROUPS = torch.tensor([5, 5])


def test_reinforce_plus_plus_whitens_the_returns_to_go_of_the_batch():
    # to go: 0 + (1 + 3 / 2) / 2 = 1.25 ; 1 + 3 / 2 = 2.5 ; 3 ; and 2. Mean 2.1875, deviations
    # -0.9375, 0.3125, 0.8125, -0.1875, sample variance 1.671875 / 3 = 0.557292, its root 0.746520
    expected = torch.tensor([[-1.255828, 0.418609, 0.0, 1.088384], [0.0, -0.251166, 0.0, 0.0]])
    actual = reinforce_plus_plus(REWARDS, MASK, gamma=0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_the_baseline_of_reinforce_plus_plus_comes_off_the_outcome():
    # returns 4 and 2, mean 3; last rewards 3 - 3 = 0 and 2 - 3 = -1
    # to go: 0.5, 1, 0 and -1. Mean 0.125, deviations 0.375, 0.875, -0.125, -1.125, sample variance
    # 2.1875 / 3 = 0.729167, its root 0.853913
    expected = torch.tensor([[0.439155, 1.024695, 0.0, -0.146385], [0.0, -1.317465, 0.0, 0.0]])
    actual = reinforce_plus_plus(REWARDS, MASK, GROUPS, gamma=0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_gigpo_adds_a_comparison_of_the_turns_in_one_state():
    states = torch.tensor([[8, 8, -1, 9], [-1, 8, -1, -1]])
    # returns 4 and 2: 1 and -1. In state 8, what followed: 1 + 3 / 2 = 2.5 and 2: 0.25 and -0.25,
    # twice that counts. State 9 was visited once: 0
    expected = torch.tensor([[1.5, 1.5, 0.0, 1.0], [0.0, -1.5, 0.0, 0.0]])
    actual = gigpo(REWARDS, MASK, TURNS, states, GROUPS, turn_gamma=0.5, step_coef=2.0, scale=None)
    torch.testing.assert_close(actual, expected)
    # of two, each is sqrt(0.5) = 0.70711 standard deviations from the mean: 1 and twice that make 3
    expected = torch.tensor([[2.12132, 2.12132, 0.0, 0.70711], [0.0, -2.12132, 0.0, 0.0]])
    actual = gigpo(REWARDS, MASK, TURNS, states, GROUPS, turn_gamma=0.5, step_coef=2.0)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)


def test_a_trajectory_is_compared_with_itself_when_it_comes_back_to_a_state():
    states = torch.full_like(TURNS, 8)
    # what followed the three turns in state 8: 1 + 3 / 2 = 2.5, 3 and 2, mean 2.5
    expected = torch.tensor([[1.0, 1.0, 0.0, 1.5], [0.0, -1.5, 0.0, 0.0]])
    actual = gigpo(REWARDS, MASK, TURNS, states, GROUPS, turn_gamma=0.5, step_coef=1.0, scale=None)
    torch.testing.assert_close(actual, expected)


def test_turns_are_compared_with_the_others_that_got_as_far():
    turns = torch.tensor([[0, 1], [0, 1], [0, -1], [0, 1], [0, -1]])
    rewards = torch.tensor([[1.0, 4.0], [0.0, 2.0], [3.0, 99.0], [1.0, 6.0], [2.0, 99.0]])
    groups = torch.tensor([0, 0, 0, 7, 7])
    # to go, group 0: 3, 4 ; 1, 2 ; 3. Turn 0: 3 - (1 + 3) / 2 = 1 ; 1 - 3 = -2 ; 3 - 2 = 1
    #   turn 1: 4 - 2 = 2 ; 2 - 4 = -2
    # group 7: 1 + 6 / 2 = 4, 6 ; 2. Turn 0: 4 - 2 = 2 and -2 ; turn 1: nobody else got there: 6
    expected = torch.tensor([[1.0, 2.0], [-2.0, -2.0], [1.0, 0.0], [2.0, 6.0], [-2.0, 0.0]])
    actual = turn_group_relative(rewards, turns >= 0, turns, groups, turn_gamma=0.5)
    torch.testing.assert_close(actual, expected)


# -------------------------------------------------------------------------------------- loops


def groups_of(batch: Batch, groups: int) -> list[int]:
    return [n % groups * 7 for n in range(len(batch.rewards))]


def states_of(batch: Batch, groups: int) -> Tensor:
    """Assigns each turn one of two states of its group, at random."""
    group = torch.tensor(groups_of(batch, groups))[:, None]
    visited = (batch.turn_ids * 5 + torch.arange(len(group))[:, None]) % 3 % 2
    return torch.where(batch.action_mask, group * 2 + visited, -1)


def play(batch: Batch, gamma: float) -> list[list[tuple[float, list[int], int]]]:
    """Per trajectory the turns: return-to-go, columns, and number."""
    played = []
    for n, row in enumerate(batch.rows()):
        to_go, turns = 0.0, []
        for turn in reversed(loop_turns(row)):
            to_go = sum(reward for _, reward, _ in turn) + gamma * to_go
            columns = [column for column, _, _ in turn]
            turns.insert(0, (to_go, columns, int(batch.turn_ids[n, columns[0]])))
        played.append(turns)
    return played


def compare(mine: float, all_of_group: list[float], scale: str | None) -> float:
    if len(set(all_of_group)) == 1:
        return 0.0
    return (mine - mean(all_of_group)) / (stdev(all_of_group) + 1e-6 if scale else 1.0)


def loop_gigpo(batch: Batch, groups: int, gamma: float, coef: float, scale: str | None) -> Tensor:
    advantages = torch.zeros_like(batch.rewards)
    group, states = groups_of(batch, groups), states_of(batch, groups)
    returns = [sum(reward for _, reward, _, _ in row) for row in batch.rows()]
    played = play(batch, gamma)
    for n, turns in enumerate(played):
        peers = [returns[m] for m in range(len(returns)) if group[m] == group[n]]
        for to_go, columns, _ in turns:
            state = states[n, columns[0]]
            same = [
                g for m, ts in enumerate(played) for g, cs, _ in ts if states[m, cs[0]] == state
            ]
            advantages[n, columns] = compare(returns[n], peers, scale) + coef * compare(
                to_go, same, scale
            )
    return advantages


def loop_turn_group(batch: Batch, groups: int, gamma: float) -> Tensor:
    advantages = torch.zeros_like(batch.rewards)
    group, played = groups_of(batch, groups), play(batch, gamma)
    for n, turns in enumerate(played):
        for to_go, columns, number in turns:
            others = [
                g
                for m, ts in enumerate(played)
                for g, _, k in ts
                if m != n and group[m] == group[n] and k == number
            ]
            advantages[n, columns] = to_go - (mean(others) if others else 0.0)
    return advantages


def loop_reinforce(batch: Batch, groups: int | None, gamma: float) -> Tensor:
    to_go, rows = torch.zeros_like(batch.rewards), batch.rows()
    returns = [sum(reward for _, reward, _, _ in row) for row in rows]
    for n, row in enumerate(rows):
        carried = 0.0
        if groups is not None:
            group = groups_of(batch, groups)
            peers = [returns[m] for m in range(len(rows)) if group[m] == group[n]]
            carried = -mean(peers) / gamma  # taken off the last token's reward, undiscounted
        for column, reward, _, _ in reversed(row):
            carried = reward + gamma * carried
            to_go[n, column] = carried
    tokens = to_go[batch.action_mask].tolist()
    if len(tokens) < 2:
        return torch.zeros_like(to_go)
    return (to_go - mean(tokens)) / (stdev(tokens) ** 2 + 1e-8) ** 0.5 * batch.action_mask


def vectorised_gigpo(
    batch: Batch, groups: int, gamma: float, coef: float, scale: str | None
) -> Tensor:
    return gigpo(
        batch.rewards, batch.action_mask, batch.turn_ids, states_of(batch, groups),
        torch.tensor(groups_of(batch, groups)), turn_gamma=gamma, step_coef=coef,
        scale=scale,  # pyright: ignore
    )  # fmt: skip


def vectorised_turn_group(batch: Batch, groups: int, gamma: float) -> Tensor:
    ids = torch.tensor(groups_of(batch, groups))
    return turn_group_relative(
        batch.rewards, batch.action_mask, batch.turn_ids, ids, turn_gamma=gamma
    )


def vectorised_reinforce(batch: Batch, groups: int | None, gamma: float) -> Tensor:
    ids = None if groups is None else torch.tensor(groups_of(batch, groups))
    return reinforce_plus_plus(batch.rewards, batch.action_mask, ids, gamma=gamma)


some_groups = st.integers(1, 3)


@given(batch=batches, groups=some_groups, gamma=discount, scale=st.sampled_from(["std", None]))
def test_gigpo_equals_a_loop(batch: Batch, groups: int, gamma: float, scale: str | None):
    actual = vectorised_gigpo(batch, groups, gamma, 0.5, scale)
    torch.testing.assert_close(actual, loop_gigpo(batch, groups, gamma, 0.5, scale))


@given(batch=batches, groups=some_groups, gamma=discount)
def test_turn_group_relative_equals_a_loop(batch: Batch, groups: int, gamma: float):
    actual = vectorised_turn_group(batch, groups, gamma)
    torch.testing.assert_close(actual, loop_turn_group(batch, groups, gamma))


@given(batch=batches, groups=st.none() | some_groups, gamma=st.sampled_from([0.1, 0.5, 0.95, 1.0]))
def test_reinforce_plus_plus_equals_a_loop(batch: Batch, groups: int | None, gamma: float):
    actual = vectorised_reinforce(batch, groups, gamma)
    torch.testing.assert_close(actual, loop_reinforce(batch, groups, gamma), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 0.9999])
def test_float32_is_exact_to_1e_4_over_8192_tokens(gamma: float):
    batch = make_batch([[(3, 1024)] * 8, [(0, 8192)], [(1, 4096)] * 2], truncated=False, seed=0)
    single = batch.in_float32()
    pairs = [
        (vectorised_gigpo(single, 1, gamma, 1.0, None), loop_gigpo(batch, 1, gamma, 1.0, None)),
        (vectorised_turn_group(single, 1, gamma), loop_turn_group(batch, 1, gamma)),
        (vectorised_reinforce(single, 1, gamma), loop_reinforce(batch, 1, gamma)),
    ]
    for actual, expected in pairs:
        assert actual.dtype == torch.float32
        error = (actual.double() - expected).abs() / expected.abs().clamp(min=1.0)
        assert float(error.max()) < 1e-4


@given(batch=batches, groups=some_groups, gamma=discount)
def test_what_was_not_sampled_is_never_read(batch: Batch, groups: int, gamma: float):
    off = ~batch.action_mask
    ids, states = torch.tensor(groups_of(batch, groups)), states_of(batch, groups)
    rewards, turns = batch.rewards.masked_fill(off, torch.nan), batch.turn_ids.masked_fill(off, 7)
    actual = gigpo(
        rewards, batch.action_mask, turns, states.masked_fill(off, 1), ids,
        turn_gamma=gamma, step_coef=1.0,
    )  # fmt: skip
    torch.testing.assert_close(actual, vectorised_gigpo(batch, groups, gamma, 1.0, "std"))
    actual = turn_group_relative(rewards, batch.action_mask, turns, ids, turn_gamma=gamma)
    torch.testing.assert_close(actual, vectorised_turn_group(batch, groups, gamma))
    actual = reinforce_plus_plus(rewards, batch.action_mask, ids, gamma=gamma)
    torch.testing.assert_close(actual, vectorised_reinforce(batch, groups, gamma))
