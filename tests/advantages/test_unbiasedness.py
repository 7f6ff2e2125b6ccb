"""Which estimators point along the true policy gradient, in a task that can be enumerated.

Turn 0: stop for a reward of 1, or go on. Turn 1, for those who went on: left earns 2, right -1. So
there are three episodes, and 27 groups of three members. One token per turn.
"""

from itertools import product

import torch
from torch import Tensor

from vagentrl.advantages import group_relative, turn_group_relative

STOP, LEFT, RIGHT = 0, 1, 2
MEMBERS = 3
EPISODES = torch.tensor(list(product((STOP, LEFT, RIGHT), repeat=MEMBERS)))  # (27, 3)
GROUPS = torch.arange(len(EPISODES)).repeat_interleave(MEMBERS)  # (81,)
PLAYED = EPISODES.flatten()
TURNS = torch.stack((torch.zeros_like(PLAYED), torch.where(PLAYED == STOP, -1, 1)), dim=1)
MASK = TURNS >= 0
REWARDS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, -1.0]], dtype=torch.float64)[PLAYED]
LOGITS = torch.tensor([0.4, -0.8], dtype=torch.float64)  # of going on, and of left


def logprobs(logits: Tensor) -> Tensor:
    """``(3, 2)``: of the two turns of each episode, 0 for a turn that it does not have."""
    go, left = torch.nn.functional.logsigmoid(logits)
    stop, right = torch.nn.functional.logsigmoid(-logits)
    return torch.stack((stop, stop * 0, go, left, go, right)).view(3, 2)


def true_gradient() -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    probability = logprobs(logits).sum(1).exp()
    returns = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    return torch.autograd.grad((probability * returns).sum(), logits)[0]


def expected_gradient(advantages: Tensor) -> Tensor:
    """Expected gradient of advantages ``(81, 2)``, over all groups with their probabilities."""
    logits = LOGITS.clone().requires_grad_()
    logs = logprobs(logits)
    estimates = (advantages * logs[PLAYED] * MASK).sum(1).view(-1, MEMBERS).mean(1)
    played = logs.sum(1).exp().detach()[EPISODES].prod(1)
    return torch.autograd.grad((played * estimates).sum(), logits)[0]


def against_mean_of_turn(scale) -> Tensor:
    """Usual normalisation: by mean (and deviation) over all members that reached the turn."""
    returns = REWARDS.flip(1).cumsum(1).flip(1)
    peers = GROUPS[:, None] * 2 + TURNS
    advantages = torch.zeros_like(returns)
    advantages[MASK] = group_relative(returns[MASK], peers[MASK], scale=scale)
    return advantages


def parallel(one: Tensor, other: Tensor) -> bool:
    return bool(torch.isclose(torch.cosine_similarity(one, other, dim=0), one.new_tensor(1.0)))


def test_all_groups_are_enumerated():
    played = logprobs(LOGITS).sum(1).exp()[EPISODES].prod(1)
    torch.testing.assert_close(played.sum(), played.new_tensor(1.0))


def test_turn_group_relative_has_the_true_policy_gradient():
    advantages = turn_group_relative(REWARDS, MASK, TURNS, GROUPS, turn_gamma=1.0)
    torch.testing.assert_close(expected_gradient(advantages), true_gradient())


def test_leave_one_out_over_trajectories_has_it_too():
    returns = group_relative(REWARDS.sum(1), GROUPS, scale=None, baseline="leave_one_out")
    torch.testing.assert_close(expected_gradient(returns[:, None].expand(-1, 2)), true_gradient())


def test_a_mean_over_the_members_that_reached_the_turn_points_elsewhere():
    for scale in (None, "std"):
        gradient = expected_gradient(against_mean_of_turn(scale))
        assert not parallel(gradient, true_gradient())
    # the mean over trajectories is only too short, by 1 - 1 / members
    mean = group_relative(REWARDS.sum(1), GROUPS, scale=None)[:, None].expand(-1, 2)
    torch.testing.assert_close(expected_gradient(mean), true_gradient() * (1 - 1 / MEMBERS))


def test_dropping_a_turn_that_nobody_else_reached_shrinks_its_gradient():
    advantages = turn_group_relative(REWARDS, MASK, TURNS, GROUPS, turn_gamma=1.0)
    went_on = (PLAYED != STOP).view(-1, MEMBERS).sum(1)
    alone = MASK & (went_on == 1).repeat_interleave(MEMBERS)[:, None]
    alone[:, 0] = False
    gradient, truth = expected_gradient(advantages.masked_fill(alone, 0.0)), true_gradient()
    torch.testing.assert_close(gradient[0], truth[0])
    # two others, each of which stops with probability 1 - sigmoid(0.4) = 0.401312
    torch.testing.assert_close(gradient[1], truth[1] * (1 - torch.sigmoid(-LOGITS[0]) ** 2))
