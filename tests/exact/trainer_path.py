"""From batches of episodes to an expected gradient, by the code that trains.

That is `collate`, `AgentModule.assess`, `MinibatchLoader` and `AgentModule.training_step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.exact.models import TEMPERATURE
from tests.exact.world import Batch, Episodes
from vagentrl.modules.agent import AgentModule
from vagentrl.rollout.collate import collate
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.types import AtLimit, Credit, RolloutBatch, Scores, TrainBatch

Gradients = dict[str, Tensor]  # by the parameter's name
IDS = ("turn_ids", "state_ids", "policy_version")  # padded with -1


@dataclass(frozen=True)
class AssessedBatch:
    """A batch with its probability, scores and credit."""

    probability: float
    rollout: RolloutBatch
    scores: Scores
    credit: Credit


def assess(
    agent: AgentModule,
    worlds: Sequence[Episodes],
    batches: Iterable[Batch],
    at_limit: AtLimit = "bootstrap",
) -> list[AssessedBatch]:
    """Collate every batch, score it and assign credit.

    Args:
        agent: The module.
        worlds: For each group, the episodes of its initial state.
        batches: Which episodes were played.
        at_limit: Whether truncated episodes are bootstrapped.
    """
    return [
        AssessedBatch(batch.probability, *agent.assess(_collate(worlds, batch, at_limit)))
        for batch in batches
    ]


def _collate(worlds: Sequence[Episodes], batch: Batch, at_limit: AtLimit) -> RolloutBatch:
    played = [
        replace(world[index], group_id=10 * number + 3)  # group ids need not be dense
        for number, (world, group) in enumerate(zip(worlds, batch.groups, strict=True))
        for index in group
    ]
    no_images: Any = None
    return collate(played, no_images, temperature=TEMPERATURE, at_limit=at_limit)


def expected_step(
    agent: AgentModule,
    assessed: Iterable[AssessedBatch],
    *,
    micro_batch_size: int,
    ranks: int = 1,
) -> tuple[float, Gradients]:
    """Expected loss and gradient of one optimizer step, one `training_step` per micro-batch.

    The loss of a micro-batch is divided as Lightning does, by the number of accumulated
    micro-batches, and as DDP does, by the number of ranks.
    """
    agent.zero_grad()
    total = 0.0
    for batch in assessed:
        for rank in range(ranks):
            loader = _loader(agent, batch, micro_batch_size, ranks, rank)
            agent.trainer.accumulate_grad_batches = loader.accumulate
            with mock.patch("vagentrl.ranks.world_size", lambda: ranks):
                for number, part in enumerate(loader):
                    loss = agent.training_step(part, number)
                    loss = batch.probability * loss / (loader.accumulate * ranks)
                    loss.backward()
                    total += float(loss.detach())
    return total, gradients(agent)


def expected_gradients(agent: AgentModule, assessed: Iterable[AssessedBatch]) -> Gradients:
    """Expected gradient of one optimizer step, by a single `training_step` for all batches.

    Each token's weight is the one that the loader gave it in its own batch, times the probability
    of that batch. This is ten times as fast as `expected_step`.
    """
    parts = []
    for batch in assessed:
        (part,) = _loader(agent, batch, len(batch.rollout), 1, 0)
        parts.append(replace(part, weights=batch.probability * part.weights))
    agent.zero_grad()
    agent.trainer.accumulate_grad_batches = 1
    agent.training_step(_concatenate(parts), 0).backward()
    return gradients(agent)


def _loader(
    agent: AgentModule, batch: AssessedBatch, micro_batch_size: int, ranks: int, rank: int
) -> MinibatchLoader:
    return MinibatchLoader(
        batch.rollout,
        batch.scores,
        batch.credit,
        agent.aggregation,
        minibatch_size=len(batch.rollout),
        micro_batch_size=micro_batch_size,
        passes=1,
        seed=0,
        ranks=ranks,
        rank=rank,
    )


def _concatenate(parts: Sequence[TrainBatch]) -> TrainBatch:
    """The rows of several batches in one, padded as `collate` pads."""
    width = max(part.weights.shape[1] for part in parts)

    def concatenate(tensors: Sequence[Tensor], fill: int = 0) -> Tensor:
        if tensors[0].dim() == 2:
            tensors = [F.pad(one, (0, width - one.shape[1]), value=fill) for one in tensors]
        return torch.cat(list(tensors))

    def fields(owners: Sequence[Any]) -> Any:
        tensors = {
            name: concatenate([getattr(owner, name) for owner in owners], -(name in IDS))
            for name, value in vars(owners[0]).items()
            if isinstance(value, Tensor)
        }
        return replace(owners[0], **tensors)

    return TrainBatch(
        fields([part.rollout for part in parts]),
        fields([part.scores for part in parts]),
        fields([part.credit for part in parts]),
        concatenate([part.weights for part in parts]),
    )


def gradients(agent: AgentModule) -> Gradients:
    """The accumulated gradient of every trainable parameter; 0 where it has none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in agent.named_parameters()
        if p.requires_grad
    }
