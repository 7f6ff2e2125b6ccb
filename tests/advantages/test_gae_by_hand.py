"""One episode, worked by hand for every estimator.

    token     prompt  a    b    obs  c    d    pad
    turn              0    0         1    1
    value             1    2         3    4
    reward                 1              2

Values off the action mask are 99, so that using one would be noticed.
"""

import torch
from torch import Tensor

from vagentrl.advantages import bi_level_gae, dual_discount_gae, masked_gae, turn_gae

MASK = torch.tensor([[False, True, True, False, True, True, False]])
TURNS = torch.tensor([[-1, 0, 0, -1, 1, 1, -1]])
VALUES = torch.tensor([[99.0, 1.0, 2.0, 99.0, 3.0, 4.0, 99.0]])
REWARDS = torch.tensor([[99.0, 0.0, 1.0, 99.0, 0.0, 2.0, 99.0]])
PENALISED = torch.tensor([[99.0, -0.5, 1.0, 99.0, -0.25, 2.0, 99.0]])  # a and c pay for their KL
BOOTSTRAP = torch.tensor([8.0])


def expect(
    credit: tuple[Tensor, Tensor], abcd: list[float], baselines: tuple[float, ...] = (1, 2, 3, 4)
) -> None:
    """Advantages of a, b, c, d; returns are those plus the baselines; the rest is 0."""
    a, b, c, d = abcd
    v, w, x, y = baselines
    advantages, returns = credit
    torch.testing.assert_close(advantages, torch.tensor([[0.0, a, b, 0.0, c, d, 0.0]]))
    torch.testing.assert_close(returns, torch.tensor([[0.0, a + v, b + w, 0.0, c + x, d + y, 0.0]]))


def test_masked_gae_steps_over_the_observation():
    # d: 2 - 4                                          = -2
    # c: 0 + 0.5 * 4 - 3 = -1      ; -1 + 0.25 * -2     = -1.5
    # b: 1 + 0.5 * 3 - 2 = 0.5     ; 0.5 + 0.25 * -1.5  = 0.125
    # a: 0 + 0.5 * 2 - 1 = 0       ; 0 + 0.25 * 0.125   = 0.03125
    credit = masked_gae(REWARDS, VALUES, MASK, gamma=0.5, lam=0.5)
    expect(credit, [0.03125, 0.125, -1.5, -2.0])


def test_masked_gae_discounts_the_bootstrap_like_a_token():
    # d: 2 + 0.5 * 8 - 4 = 2 ; c: -1 + 0.25 * 2 = -0.5 ; b: 0.5 + 0.25 * -0.5 = 0.375
    # a: 0.25 * 0.375 = 0.09375
    credit = masked_gae(REWARDS, VALUES, MASK, gamma=0.5, lam=0.5, bootstrap=BOOTSTRAP)
    expect(credit, [0.09375, 0.375, -0.5, 2.0])


AT_TURN_STARTS = (1.0, 1.0, 3.0, 3.0)  # the values at a and c, for both tokens of their turns


def test_turn_gae_gives_a_turn_one_advantage_over_the_value_at_its_first_token():
    # turn 1: 2 - 3 = -1 ; turn 0: 1 + 0.5 * 3 - 1 = 1.5, and 1.5 + 0.25 * -1 = 1.25
    credit = turn_gae(REWARDS, VALUES, MASK, TURNS, turn_gamma=0.5, turn_lam=0.5)
    expect(credit, [1.25, 1.25, -1.0, -1.0], AT_TURN_STARTS)


def test_turn_gae_bootstraps_the_last_turn():
    # turn 1: 2 + 0.5 * 8 - 3 = 3 ; turn 0: 1.5 + 0.25 * 3 = 2.25
    credit = turn_gae(
        REWARDS, VALUES, MASK, TURNS, turn_gamma=0.5, turn_lam=0.5, bootstrap=BOOTSTRAP
    )
    expect(credit, [2.25, 2.25, 3.0, 3.0], AT_TURN_STARTS)


def test_turn_gae_counts_all_that_the_turn_earned():
    # turn 1: 1.75 - 3 = -1.25 ; turn 0: 0.5 + 0.5 * 3 - 1 = 1, and 1 + 0.25 * -1.25 = 0.6875
    credit = turn_gae(PENALISED, VALUES, MASK, TURNS, turn_gamma=0.5, turn_lam=0.5)
    expect(credit, [0.6875, 0.6875, -1.25, -1.25], AT_TURN_STARTS)


def bi_level(rewards: Tensor, bootstrap: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return bi_level_gae(
        rewards, VALUES, MASK, TURNS,
        gamma=0.5, lam=1.0, turn_gamma=0.5, turn_lam=0.5, bootstrap=bootstrap,
    )  # fmt: skip


def test_bi_level_gae_passes_the_turns_credit_down_to_its_tokens():
    # turn 1: 2 - 4 = -2 ; turn 0: 1 + 0.5 * 4 - 2 = 1, and 1 + 0.25 * -2 = 0.5
    # rewards become d: -2 + 4 = 2, b: 0.5 + 2 = 2.5
    # d: 2 - 4 = -2      ; c: 0 + 0.5 * 4 - 3 = -1, and -1 + 0.5 * -2 = -2
    # b: 2.5 - 2 = 0.5   ; a: 0 + 0.5 * 2 - 1 = 0, and 0.5 * 0.5 = 0.25
    expect(bi_level(REWARDS), [0.25, 0.5, -2.0, -2.0])


def test_bi_level_gae_bootstraps_the_last_turn():
    # turn 1: 2 + 0.5 * 8 - 4 = 2 ; turn 0: 1 + 0.25 * 2 = 1.5
    # d: 2 ; c: -1 + 0.5 * 2 = 0 ; b: 1.5 ; a: 0 + 0.5 * 1.5 = 0.75
    expect(bi_level(REWARDS, BOOTSTRAP), [0.75, 1.5, 0.0, 2.0])


def test_bi_level_gae_treats_a_turn_without_reward_as_a_turn():
    rewards = REWARDS.clone()
    rewards[0, 2] = 0.0
    # A_0: 0 + 0.5 * 4 - 2 = 0, and 0.25 * -2 = -0.5 ; b: -0.5 ; a: 0 + 0.5 * -0.5 = -0.25
    expect(bi_level(rewards), [-0.25, -0.5, -2.0, -2.0])


def test_bi_level_gae_counts_a_tokens_own_penalty_once_and_in_its_turn():
    # the turn pass is unchanged; c: -1.25 + 0.5 * -2 = -2.25 ; a: -0.5 + 0.5 * 0.5 = -0.25
    expect(bi_level(PENALISED), [-0.25, 0.5, -2.25, -2.0])


def dual_discount(bootstrap: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return dual_discount_gae(
        REWARDS, VALUES, MASK, TURNS,
        token_gamma=1.0, token_lam=1.0, step_gamma=0.5, step_lam=0.5, bootstrap=bootstrap,
    )  # fmt: skip


def test_dual_discount_gae_discounts_only_between_turns():
    # d: 2 - 4 = -2                      ; c: 4 - 3 = 1, and 1 - 2 = -1
    # b: 1 + 0.5 * 3 - 2 = 0.5, and 0.5 + 0.25 * -1 = 0.25 ; a: 2 - 1 = 1, and 1 + 0.25 = 1.25
    expect(dual_discount(), [1.25, 0.25, -1.0, -2.0])


def test_dual_discount_gae_reaches_the_bootstrap_by_a_step():
    # d: 2 + 0.5 * 8 - 4 = 2 ; c: 1 + 2 = 3 ; b: 0.5 + 0.25 * 3 = 1.25 ; a: 1 + 1.25 = 2.25
    expect(dual_discount(BOOTSTRAP), [2.25, 1.25, 3.0, 2.0])
