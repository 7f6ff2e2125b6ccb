"""One estimator in the exact world: its expected gradient, the documented one and the true one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.exact import objectives, trainer_path
from tests.exact.cases import AGGREGATIONS, LOSSES, MEMBERS, EstimatorCase
from tests.exact.formulas import Mode
from tests.exact.models import logprob_table, make_agent
from tests.exact.objectives import CONSTANT_LENGTH, Tokens
from tests.exact.trainer_path import Gradients
from tests.exact.world import (
    LONG,
    Episodes,
    Path,
    all_batches,
    continue_from,
    probabilities,
    to_paths,
    with_logprobs,
)
from vagentrl.callbacks import KLControl
from vagentrl.types import AtLimit


class Experiment:
    """Every batch of one group that the policy may play, assessed by one estimator.

    Args:
        case: The estimator and its formula.
        exact_critic: Whether the critic, or the mean of the continuations, is the true value;
            otherwise the values are random.
        kl: A penalty on the divergence from the reference.
        sampler: Table of log-probs of the policy that sampled, if it is not the actor.
        episodes: All episodes that can be played.
        members: Episodes in a group; None: 2 with a critic, and `MEMBERS` where members are
            compared.
        settings: Settings of the module.

    Attributes:
        paths: The episodes, with KL penalties in their rewards where that is their place.
        chances: The probability of each episode.
        old_logprobs: The actor's table when the batches were scored.
        old_values: The critic's table when the batches were scored.
        reference: The reference's table; None without a reference.
    """

    def __init__(
        self,
        case: EstimatorCase,
        *,
        exact_critic: bool = False,
        kl: KLControl | None = None,
        sampler: Tensor | None = None,
        episodes: Episodes = LONG,
        members: int | None = None,
        **settings: Any,
    ) -> None:
        self.case = case
        self.kl = kl
        self.agent = make_agent(case.estimator, *([kl] if kl else []), **settings)
        actor = self.agent.logprob_table().detach()
        reference = self.agent.reference
        self.reference = None if reference is None else logprob_table(reference.policy).detach()
        self.paths = [self._penalise(path, actor) for path in to_paths(episodes)]
        self.sampler = actor if sampler is None else sampler
        self.chances = probabilities(self.paths, self.sampler).tolist()
        if exact_critic and case.estimator.needs_critic:
            ends = self.agent.value_table().tolist()
            self.agent.set_values(objectives.exact_values(self.paths, self.chances, ends))
        members = members or (2 if case.estimator.needs_critic else MEMBERS)
        self.batches = all_batches([self.chances], members)
        if (wanted := case.estimator.continuations) is not None:
            episodes = continue_from(episodes, wanted.every, self._continued_values(exact_critic))
            self.paths = [self._penalise(path, actor) for path in to_paths(episodes)]
        self.play(episodes)

    def _continued_values(self, exact: bool) -> dict[int, float]:
        """Mean return of the continuations from each state, in float32 as `collate` stores it."""
        nothing_follows = [0.0] * len(self.agent.value_table())
        values = objectives.exact_values(self.paths, self.chances, nothing_follows)
        if not exact:
            values = {state: math.sin(5 * state) for state in values}
        return {state: float(torch.tensor(value).float()) for state, value in values.items()}

    def _penalise(self, path: Path, actor: Tensor) -> Path:
        if self.kl is None or self.kl.place == "loss":
            return path
        assert self.reference is not None
        penalties = self.kl.coefficient * objectives.kl(self.kl.estimator, actor, self.reference)
        taken = penalties[list(path.states), list(path.actions)].tolist()
        rewards = [reward - one for reward, one in zip(path.rewards, taken, strict=True)]
        return replace(path, rewards=tuple(rewards))

    def play(self, episodes: Episodes, at_limit: AtLimit = "bootstrap") -> None:
        """Put these episodes in the place of those of the same index, and score them."""
        self._played = [with_logprobs(episode, self.sampler) for episode in episodes]
        self.score(at_limit)

    def score(self, at_limit: AtLimit = "bootstrap") -> None:
        """Score all batches with the present weights, and assign credit."""
        self.old_logprobs = self.agent.logprob_table().detach()
        self.old_values = self.agent.value_table().detach()
        self.assessed = trainer_path.assess(self.agent, [self._played], self.batches, at_limit)

    def move(self) -> None:
        """Change all weights so far that some ratios and values are clipped and others are not."""
        torch.manual_seed(1)
        with torch.no_grad():
            for weight in self.agent.parameters():
                if weight.requires_grad:
                    weight += 0.12 * torch.randn_like(weight)

    # ------------------------------------------------------------------- what the trainer computes

    def gradients(self, loss: str, mode: Mode) -> Gradients:
        """Expected gradient of the trainer's step."""
        self._choose(loss, mode)
        return trainer_path.expected_gradients(self.agent, self.assessed)

    def step(
        self, loss: str, mode: Mode, *, micro_batch_size: int, ranks: int = 1
    ) -> tuple[float, Gradients]:
        """Expected loss and gradient of the trainer's step, micro-batch by micro-batch."""
        self._choose(loss, mode)
        return trainer_path.expected_step(
            self.agent, self.assessed, micro_batch_size=micro_batch_size, ranks=ranks
        )

    def _choose(self, loss: str, mode: Mode) -> None:
        self.agent.policy_loss = LOSSES[loss].loss
        self.agent.aggregation = AGGREGATIONS[mode]

    # --------------------------------------------------------------------- what it should compute

    def documented(self, loss: str, mode: Mode) -> Gradients:
        """Gradient of the documented loss, in expectation."""
        return objectives.gradients(self.documented_loss(loss, self.tokens(mode)), self.agent)

    def tokens(self, mode: Mode) -> Tokens:
        """The sampled tokens of all batches, with the credit that the formula gives."""
        return objectives.lay_out(
            [self.paths], self.batches, self.case.formula, self.old_values.tolist(), mode
        )

    def documented_loss(self, loss: str, tokens: Tokens) -> Tensor:
        """The loss of docs/algorithms.md, on these tokens and with the present weights."""
        table, agent = self.agent.logprob_table(), self.agent
        logprobs, old = tokens.of(table), tokens.of(self.old_logprobs)
        per_token = LOSSES[loss].formula(logprobs, old, tokens.advantages, tokens.turns)
        entropy = -(table.exp() * table).sum(-1)[tokens.states]
        per_token = per_token - agent.entropy_coef * entropy
        if self.kl is not None and self.kl.place == "loss":
            assert self.reference is not None
            penalty = objectives.kl(self.kl.estimator, logprobs, tokens.of(self.reference))
            per_token = per_token + self.kl.coefficient * penalty
        if agent.critic is not None:
            values, before = agent.value_table()[tokens.states], self.old_values[tokens.states]
            error = objectives.value_loss(values, before, tokens.returns, agent.value_clip)
            per_token = per_token + agent.value_coef * error
        return (tokens.weights * per_token).sum()

    def true(self) -> Gradients:
        """Gradient of minus the expected return, divided by the constant length.

        A critic's values count for what follows a truncated or cut episode; without a critic
        nothing follows it.
        """
        ends = self.old_values.tolist() if self.agent.critic is not None else None
        expected = objectives.expected_return(self.paths, self.agent.logprob_table(), ends)
        return objectives.gradients(-expected / CONSTANT_LENGTH, self.agent)


def of_actor(gradients: Gradients) -> Tensor:
    """The actor's part of a gradient, as one vector."""
    return torch.cat([g.flatten() for name, g in gradients.items() if name.startswith("actor.")])


def visits(paths: Sequence[Path], chances: Sequence[float], states: int) -> Tensor:
    """How often an episode passes through each of the states, in expectation."""
    counts = torch.zeros(states)
    for path, chance in zip(paths, chances, strict=True):
        counts[list(path.states)] += chance
    return counts
