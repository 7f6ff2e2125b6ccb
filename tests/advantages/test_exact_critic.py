"""With the exact critic, every GAE points along the true policy gradient.

A task of two turns, each of two tokens: an action, 0 or 1, and an end of turn, which is certain.
There are four episodes, and every value of every state is known.
"""

from itertools import product

import pytest
import torch
from torch import Tensor

from vagentrl.advantages import bi_level_gae, dual_discount_gae, masked_gae, turn_gae

EPISODES = list(product((0, 1), repeat=2))  # (first action, second action)
FIRST_REWARD = [0.5, 0.0]
SECOND_REWARD = [[0.0, 1.0], [0.0, 4.0]]  # the best episode begins with the worse reward
TURN_IDS = torch.tensor([[0, 0, 1, 1]]).expand(4, -1)
MASK = torch.ones(4, 4, dtype=torch.bool)
# Logits of action 1: in the first turn, and in the second after action 0 and after action 1.
LOGITS = torch.tensor([-0.3, 0.2, -0.6], dtype=torch.float64)


def logprobs(logits: Tensor) -> Tensor:
    """``(4, 4)``: log-prob of each token of each episode; an end of turn is certain."""
    one, zero = torch.nn.functional.logsigmoid(torch.stack((logits, -logits)))
    certain = logits.new_zeros(())
    rows = [
        torch.stack(((zero, one)[a][0], certain, (zero, one)[b][1 + a], certain))
        for a, b in EPISODES
    ]
    return torch.stack(rows)


def rewards() -> Tensor:
    """``(4, 4)``: each turn's reward, on its last token."""
    rows = [[0.0, FIRST_REWARD[a], 0.0, SECOND_REWARD[a][b]] for a, b in EPISODES]
    return torch.tensor(rows, dtype=torch.float64)


def exact_values(logits: Tensor) -> Tensor:
    """``(4, 4)``: expected return of the state before each token."""
    first, after = torch.sigmoid(logits[0]), torch.sigmoid(logits[1:])
    second = [(1 - after[a]) * SECOND_REWARD[a][0] + after[a] * SECOND_REWARD[a][1] for a in (0, 1)]
    chosen = [FIRST_REWARD[a] + second[a] for a in (0, 1)]
    start = (1 - first) * chosen[0] + first * chosen[1]
    rows = [
        torch.stack((start, chosen[a], second[a], torch.as_tensor(SECOND_REWARD[a][b]).double()))
        for a, b in EPISODES
    ]
    return torch.stack(rows)


def true_gradient(logits: Tensor) -> Tensor:
    """Gradient of the expected return."""
    logits = logits.clone().requires_grad_()
    chances = logprobs(logits).sum(1).exp()
    return torch.autograd.grad((chances * rewards().sum(1)).sum(), logits)[0]


def expected_gradient(logits: Tensor, advantages: Tensor) -> Tensor:
    """The expected policy gradient with these advantages, over all episodes."""
    logits = logits.clone().requires_grad_()
    scores = logprobs(logits)
    chances = scores.sum(1).exp().detach()
    return torch.autograd.grad((chances * (advantages * scores).sum(1)).sum(), logits)[0]


def by_turns(lam: float, rewards: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return turn_gae(rewards, values, MASK, TURN_IDS, turn_gamma=1.0, turn_lam=lam)


def by_tokens(lam: float, rewards: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return masked_gae(rewards, values, MASK, gamma=1.0, lam=lam)


def on_two_levels(lam: float, rewards: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return bi_level_gae(
        rewards, values, MASK, TURN_IDS, gamma=1.0, lam=lam, turn_gamma=1.0, turn_lam=lam
    )


def with_two_discounts(lam: float, rewards: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return dual_discount_gae(
        rewards, values, MASK, TURN_IDS, token_gamma=1.0, token_lam=1.0, step_gamma=1.0,
        step_lam=lam,
    )  # fmt: skip


every_gae = pytest.mark.parametrize(
    "estimate", [by_turns, by_tokens, on_two_levels, with_two_discounts]
)


def test_all_episodes_are_enumerated():
    torch.testing.assert_close(float(logprobs(LOGITS).sum(1).exp().sum()), 1.0)


@every_gae
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_the_expected_gradient_is_the_true_one(estimate, lam: float):
    advantages, _ = estimate(lam, rewards(), exact_values(LOGITS))
    torch.testing.assert_close(expected_gradient(LOGITS, advantages), true_gradient(LOGITS))


@every_gae
def test_the_policy_learns_the_best_episode(estimate):
    logits = torch.zeros(3, dtype=torch.float64)
    for _ in range(200):
        advantages, _ = estimate(0.5, rewards(), exact_values(logits))
        logits = logits + 0.5 * expected_gradient(logits, advantages)
    assert float(logprobs(logits)[EPISODES.index((1, 1))].sum().exp()) > 0.95


@every_gae
def test_expected_returns_are_the_exact_values(estimate):
    """An exact critic is a fixed point; the tokens of a turn share the value of its start."""
    values = exact_values(LOGITS)
    _, returns = estimate(0.5, rewards(), values)
    chances = logprobs(LOGITS).sum(1).exp()
    torch.testing.assert_close((chances * returns[:, 0]).sum(), values[0, 0])
    for first in (0, 1):  # the second turn, in the state that the first action leads to
        here = [number for number, episode in enumerate(EPISODES) if episode[0] == first]
        share = chances[here] / chances[here].sum()
        torch.testing.assert_close((share * returns[here, 2]).sum(), values[here[0], 2])


def test_all_tokens_of_a_turn_share_its_advantage_and_return():
    advantages, returns = by_turns(0.5, rewards(), exact_values(LOGITS))
    for shared in (advantages, returns):
        torch.testing.assert_close(shared[:, 0::2], shared[:, 1::2])
