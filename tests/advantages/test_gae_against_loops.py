"""Every estimator against a slow loop over Python floats, on ragged batches."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.advantages.ragged import Batch, batches, discount, loop_turns, make_batch
from vagentrl.advantages import bi_level_gae, dual_discount_gae, masked_gae, turn_gae

one_turn = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=1)
single_turn_batches = st.builds(
    make_batch, st.lists(one_turn, min_size=2, max_size=4), st.just(False), st.integers(0, 1000)
)

# -------------------------------------------------------------------------------------- loops


def loop_masked(batch: Batch, gamma: float, lam: float) -> Tensor:
    return loop_dual_discount(batch, gamma, lam, gamma, lam)


def loop_dual_discount(
    batch: Batch, token_gamma: float, token_lam: float, step_gamma: float, step_lam: float
) -> Tensor:
    advantages = torch.zeros_like(batch.rewards)
    for n, row in enumerate(batch.rows()):
        following, carried, next_turn = batch.after(n), 0.0, None
        for column, reward, value, turn in reversed(row):
            inside = turn == next_turn
            gamma, lam = (token_gamma, token_lam) if inside else (step_gamma, step_lam)
            carried = reward + gamma * following - value + gamma * lam * carried
            advantages[n, column] = carried
            following, next_turn = value, turn
    return advantages


def loop_turn(batch: Batch, turn_gamma: float, turn_lam: float) -> Tensor:
    advantages = torch.zeros_like(batch.rewards)
    for n, row in enumerate(batch.rows()):
        following, carried = batch.after(n), 0.0
        for turn in reversed(loop_turns(row)):
            earned, value = sum(reward for _, reward, _ in turn), turn[0][2]
            carried = earned + turn_gamma * following - value + turn_gamma * turn_lam * carried
            following = value
            for column, _, _ in turn:
                advantages[n, column] = carried
    return advantages


def loop_bi_level(
    batch: Batch, gamma: float, lam: float, turn_gamma: float, turn_lam: float
) -> Tensor:
    advantages = torch.zeros_like(batch.rewards)
    for n, row in enumerate(batch.rows()):
        following_turn, carried_turn = batch.after(n), 0.0
        for turn in reversed(loop_turns(row)):
            _, reward, value = turn[-1]
            delta = reward + turn_gamma * following_turn - value
            carried_turn = delta + turn_gamma * turn_lam * carried_turn
            following_turn = value
            rewards = [reward for _, reward, _ in turn[:-1]] + [carried_turn + value]
            following, carried = 0.0, 0.0
            for (column, _, value), reward in zip(reversed(turn), reversed(rewards), strict=True):
                carried = reward + gamma * following - value + gamma * lam * carried
                advantages[n, column] = carried
                following = value
    return advantages


# ------------------------------------------------------------------------------------- claims


def vectorised(name: str, batch: Batch, a: float, b: float, c: float, d: float):
    """The estimator of that name; those with two discounts take the first two."""
    streams = (batch.rewards, batch.values, batch.action_mask)
    turn_ids, after = batch.turn_ids, batch.bootstrap
    if name == "masked":
        return masked_gae(*streams, gamma=a, lam=b, bootstrap=after)
    if name == "turn":
        return turn_gae(*streams, turn_ids, turn_gamma=a, turn_lam=b, bootstrap=after)
    if name == "bi_level":
        return bi_level_gae(
            *streams, turn_ids, gamma=a, lam=b, turn_gamma=c, turn_lam=d, bootstrap=after
        )
    return dual_discount_gae(
        *streams, turn_ids, token_gamma=a, token_lam=b, step_gamma=c, step_lam=d, bootstrap=after
    )


def looped(name: str, batch: Batch, a: float, b: float, c: float, d: float) -> Tensor:
    if name == "masked":
        return loop_masked(batch, a, b)
    if name == "turn":
        return loop_turn(batch, a, b)
    return (loop_bi_level if name == "bi_level" else loop_dual_discount)(batch, a, b, c, d)


def baseline(name: str, batch: Batch) -> Tensor:
    """What returns exceed advantages by: a token's own value, or that of its turn's first token."""
    values = batch.values * batch.action_mask
    for n, row in enumerate(batch.rows() if name == "turn" else []):
        for turn in loop_turns(row):
            values[n, [column for column, _, _ in turn]] = turn[0][2]
    return values


every_estimator = pytest.mark.parametrize("name", ["masked", "turn", "bi_level", "dual_discount"])


@every_estimator
@given(batch=batches, a=discount, b=discount, c=discount, d=discount)
def test_equals_a_loop_over_tokens(name: str, batch: Batch, a: float, b: float, c: float, d: float):
    advantages, returns = vectorised(name, batch, a, b, c, d)
    expected = looped(name, batch, a, b, c, d)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, expected + baseline(name, batch))
    assert advantages.dtype == returns.dtype == torch.float64


@every_estimator
@pytest.mark.parametrize("gamma", [1.0, 0.9999, 0.95])
def test_float32_is_exact_to_1e_4_over_8192_tokens(name: str, gamma: float):
    long = make_batch([[(3, 1024)] * 8, [(0, 8192)]], truncated=True, seed=0)
    long = replace(
        long.in_float32(), rewards=long.rewards.float() + 1.0
    )  # sums grow: no cancelling
    exact = replace(long, rewards=long.rewards.double(), values=long.values.double())
    advantages, returns = vectorised(name, long, gamma, 1.0, gamma, 1.0)
    expected = looped(name, exact, gamma, 1.0, gamma, 1.0)
    assert advantages.dtype == returns.dtype == torch.float32
    error = (advantages.double() - expected).abs() / expected.abs().clamp(min=1.0)
    assert float(error.max()) < 1e-5


@every_estimator
def test_nothing_sampled_gives_nothing(name: str):
    batch = make_batch([[], []], truncated=True, seed=0)
    advantages, returns = vectorised(name, batch, 1.0, 1.0, 1.0, 1.0)
    assert not advantages.any() and not returns.any()


@every_estimator
@given(batch=batches, a=discount, b=discount, c=discount, d=discount)
def test_what_was_not_sampled_is_never_read(
    name: str, batch: Batch, a: float, b: float, c: float, d: float
):
    off = ~batch.action_mask
    poisoned = replace(
        batch,
        rewards=batch.rewards.masked_fill(off, torch.nan),
        values=batch.values.masked_fill(off, torch.inf),
        turn_ids=batch.turn_ids.masked_fill(off, 7),
    )
    torch.testing.assert_close(
        vectorised(name, poisoned, a, b, c, d), vectorised(name, batch, a, b, c, d)
    )


@given(batch=single_turn_batches, gamma=discount, lam=discount, turn_gamma=discount)
def test_bi_level_gae_of_one_terminated_turn_is_masked_gae(
    batch: Batch, gamma: float, lam: float, turn_gamma: float
):
    torch.testing.assert_close(
        vectorised("bi_level", batch, gamma, lam, turn_gamma, 0.5),
        vectorised("masked", batch, gamma, lam, 0.0, 0.0),
    )


@given(batch=batches)
def test_undiscounted_bi_level_gae_is_masked_gae_when_only_turns_are_rewarded(batch: Batch):
    next_turn = torch.nn.functional.pad(batch.turn_ids[:, 1:], (0, 1), value=-1)
    turn_end = batch.action_mask & (batch.turn_ids != next_turn)
    batch = replace(batch, rewards=batch.rewards * turn_end)
    torch.testing.assert_close(
        vectorised("bi_level", batch, 1.0, 1.0, 1.0, 1.0),
        vectorised("masked", batch, 1.0, 1.0, 0.0, 0.0),
    )


@given(batch=batches, gamma=discount, lam=discount)
def test_dual_discount_gae_with_equal_discounts_is_masked_gae(
    batch: Batch, gamma: float, lam: float
):
    torch.testing.assert_close(
        vectorised("dual_discount", batch, gamma, lam, gamma, lam),
        vectorised("masked", batch, gamma, lam, 0.0, 0.0),
    )
