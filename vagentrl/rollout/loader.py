"""Shuffled minibatches of a collected batch, as micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vagentrl.losses import Aggregation
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch


class MinibatchLoader:
    """Several shuffled passes over a batch.

    Every minibatch has the same number of micro-batches, so that the optimizer can step after each
    `accumulate` of them. Rows of a minibatch are sorted by length before it is cut: little padding.

    Args:
        rollout: The rows, scored and with credit.
        scores: Their scores.
        credit: Their credit.
        aggregation: Gives each token its weight in the loss of its minibatch.
        minibatch_size: Rows in one optimizer step, about: minibatches are of equal size.
        micro_batch_size: Rows in one forward and backward pass at most.
        passes: How often each row is used (RAGEN's online-k).
        seed: Decides the order.
    """

    def __init__(
        self,
        rollout: RolloutBatch,
        scores: Scores,
        credit: Credit,
        aggregation: Aggregation,
        *,
        minibatch_size: int,
        micro_batch_size: int,
        passes: int,
        seed: int,
    ) -> None:
        self.whole = TrainBatch(rollout, scores, credit, torch.zeros_like(rollout.rewards))
        self.aggregation = aggregation
        self.passes = passes
        self.seed = seed
        rows = len(rollout)
        self.minibatches = max(1, round(rows / minibatch_size))
        smallest, largest = rows // self.minibatches, -(-rows // self.minibatches)
        self.accumulate = min(-(-largest // micro_batch_size), smallest)

    def __len__(self) -> int:
        return self.passes * self.minibatches * self.accumulate

    def __iter__(self) -> Iterator[TrainBatch]:
        generator = torch.Generator().manual_seed(self.seed)
        lengths = self.whole.rollout.attention_mask.sum(-1).cpu()
        for _ in range(self.passes):
            order = torch.randperm(len(lengths), generator=generator)
            for rows in order.tensor_split(self.minibatches):
                minibatch = self._minibatch(rows[lengths[rows].argsort(stable=True)])
                for part in torch.arange(len(rows)).tensor_split(self.accumulate):
                    yield minibatch.select(part)

    def _minibatch(self, rows: torch.Tensor) -> TrainBatch:
        batch = self.whole.select(rows)
        weights = self.aggregation(batch.rollout.action_mask, batch.rollout.trajectory_ids)
        return TrainBatch(batch.rollout, batch.scores, batch.credit, weights)
