"""Expected losses and true objectives by enumeration, as functions of the models' tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.exact.formulas import Estimate, Mode, Values, weights
from tests.exact.trainer_path import Gradients
from tests.exact.world import Batch, Path, probabilities
from vagentrl.modules.agent import AgentModule

CONSTANT_LENGTH = 4


@dataclass(frozen=True)
class Tokens:
    """The ``M`` sampled tokens of all batches, one after the other.

    Attributes:
        states: ``(M,)`` row of the state before each token.
        actions: ``(M,)`` each token: 0 for A, 1 for B.
        turns: ``(M,)`` index of the turn, counted through all batches.
        episodes: ``(M,)`` index of the episode, counted through all batches.
        weights: ``(M,)`` weight in the loss of its batch, times the batch's probability.
        advantages: ``(M,)`` advantage.
        returns: ``(M,)`` what the critic regresses to; 0 without a critic.
    """

    states: Tensor
    actions: Tensor
    turns: Tensor
    episodes: Tensor
    weights: Tensor
    advantages: Tensor
    returns: Tensor

    def of(self, table: Tensor) -> Tensor:
        """The entry ``(M,)`` of each token in a table ``(states, 2)``."""
        return table[self.states, self.actions]


def lay_out(
    worlds: Sequence[Sequence[Path]],
    batches: Sequence[Batch],
    estimate: Estimate,
    values: Values,
    mode: Mode,
) -> Tokens:
    """The tokens of all batches, with weights and credit.

    Args:
        worlds: For each group, the episodes of its initial state.
        batches: The batches.
        estimate: The estimator's formula.
        values: The critic's values.
        mode: Aggregation; mode constant_length divides by `CONSTANT_LENGTH`.
    """
    columns: list[list[float]] = [[] for _ in range(7)]
    turn = episode = 0
    for batch in batches:
        groups = [
            [world[index] for index in group]
            for world, group in zip(worlds, batch.groups, strict=True)
        ]
        paths = [path for group in groups for path in group]
        credits = [credit for group in estimate(groups, values) for credit in group]
        for path, credit in zip(paths, credits, strict=True):
            shares = weights(path, paths, mode, CONSTANT_LENGTH)
            added = (
                path.states,
                path.actions,
                [turn + number for number in path.turns],
                [episode] * len(path),
                [batch.probability * share for share in shares],
                credit.advantages,
                credit.returns or [0.0] * len(path),
            )
            for column, entries in zip(columns, added, strict=True):
                column.extend(entries)
            turn, episode = turn + path.turns[-1] + 1, episode + 1
    return Tokens(*(torch.tensor(column) for column in columns))


# ----------------------------------------------------------------------------------- loss per token

LossFormula = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""The loss of each token from log-probs, old log-probs, advantages and turns, each ``(M,)``."""


def reinforce(logprobs: Tensor, old: Tensor, advantages: Tensor, turns: Tensor) -> Tensor:
    return -advantages * logprobs


def ppo(low: float, high: float, dual_clip: float | None = None) -> LossFormula:
    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor, turns: Tensor) -> Tensor:
        surrogate = _clipped_surrogate((logprobs - old).exp(), advantages, low, high)
        if dual_clip is None:
            return -surrogate
        bounded = torch.maximum(surrogate, dual_clip * advantages)
        return -torch.where(advantages < 0, bounded, surrogate)

    return loss


def gspo(low: float, high: float) -> LossFormula:
    """With turns as sequences."""

    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor, turns: Tensor) -> Tensor:
        count = int(turns.max()) + 1
        sums = logprobs.new_zeros(count).index_add(0, turns, (logprobs - old).detach())
        ratio = (sums / turns.bincount(minlength=count)).exp()[turns]
        # the value of the whole turn, with the gradient of the token alone
        ratio = ratio * (1 + logprobs - logprobs.detach())
        return -_clipped_surrogate(ratio, advantages, low, high)

    return loss


def cispo(low: float | None, high: float) -> LossFormula:
    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor, turns: Tensor) -> Tensor:
        ratio = (logprobs - old).exp().detach()
        return -ratio.clamp(0.0 if low is None else 1 - low, 1 + high) * advantages * logprobs

    return loss


def _clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def kl(kind: str, logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's estimates of KL(policy || reference)."""
    k2 = (logprobs - reference) ** 2 / 2
    k3 = (reference - logprobs).exp() - 1 - (reference - logprobs)
    return {
        "k1": logprobs - reference,
        "k2": k2,
        "k3": k3,
        "k3+": k3.detach() + k2 - k2.detach(),
    }[kind]


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    error = (values - returns) ** 2
    if clip is not None:
        near = torch.minimum(torch.maximum(values, old - clip), old + clip)
        error = torch.maximum(error, (near - returns) ** 2)
    return error / 2


# ---------------------------------------------------------------------------------- true objectives


def expected_return(
    paths: Sequence[Path], logprobs: Tensor, values: Values | None = None
) -> Tensor:
    """Expected undiscounted return of the policy.

    Args:
        paths: Every episode.
        logprobs: The policy's table of log-probs.
        values: Value of what follows an episode that did not terminate; None: nothing follows.
    """
    returns = [sum(path.rewards) for path in paths]
    if values is not None:
        ends = [0.0 if path.after is None else values[path.after] for path in paths]
        returns = [earned + end for earned, end in zip(returns, ends, strict=True)]
    return (probabilities(paths, logprobs) * torch.tensor(returns)).sum()


def exact_values(
    paths: Sequence[Path],
    chances: Sequence[float],
    values: Values,
    *,
    token_gamma: float = 1.0,
    turn_gamma: float = 1.0,
) -> dict[int, float]:
    """The true value of every state before a sampled token: its expected discounted return.

    Args:
        paths: Every episode.
        chances: Probability of each episode.
        values: Value of what follows an episode that did not terminate.
        token_gamma: Discount from a token to the next of the same turn.
        turn_gamma: Discount from a turn's last token to what follows it.
    """
    sums: dict[int, float] = {}
    visits: dict[int, float] = {}
    for path, chance in zip(paths, chances, strict=True):
        for state, to_go in zip(
            path.states, returns_to_go(path, values, token_gamma, turn_gamma), strict=True
        ):
            sums[state] = sums.get(state, 0.0) + chance * to_go
            visits[state] = visits.get(state, 0.0) + chance
    return {state: sums[state] / visits[state] for state in sums}


def returns_to_go(path: Path, values: Values, token_gamma: float, turn_gamma: float) -> list[float]:
    """Discounted return from each token on; see `exact_values`."""
    to_go: list[float] = []
    left = 0.0 if path.after is None else values[path.after]
    for t in reversed(range(len(path))):
        inside = t + 1 < len(path) and path.turns[t + 1] == path.turns[t]
        left = path.rewards[t] + (token_gamma if inside else turn_gamma) * left
        to_go.insert(0, left)
    return to_go


def gradients(scalar: Tensor, agent: AgentModule) -> Gradients:
    """Gradient of a scalar by parameter name; 0 where the scalar does not depend on it."""
    trainable = {name: p for name, p in agent.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(
        scalar, list(trainable.values()), allow_unused=True, retain_graph=True
    )
    return {
        name: torch.zeros_like(p) if gradient is None else gradient
        for (name, p), gradient in zip(trainable.items(), found, strict=True)
    }
