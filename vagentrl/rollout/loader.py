"""Shuffled minibatches of a collected batch, as micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vagentrl.losses import Aggregation, trajectory_lengths
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
        seed: Decides the order, and the part.
        part: Share of the rows to use at all, drawn at random.
        ranks: How many learn together: each takes its share of every minibatch's micro-batches, and
            the gradient is the sum of theirs.
        rank: Which of them this is.
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
        part: float = 1.0,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        self.whole = TrainBatch(rollout, scores, credit, torch.zeros_like(rollout.rewards))
        self.aggregation = aggregation
        self.lengths = trajectory_lengths(rollout.action_mask, rollout.trajectory_ids)
        self.passes = passes
        self.seed = seed
        learns = (
            rollout.action_mask.any(-1).nonzero().flatten().cpu()
        )  # others are bootstrapped from
        generator = torch.Generator().manual_seed(seed + 1)
        order = torch.randperm(len(learns), generator=generator)
        self.rows = learns[order[: max(1, round(part * len(learns)))]].sort().values
        rows = len(self.rows)
        self.minibatches = max(1, round(rows / minibatch_size))
        largest = -(-rows // self.minibatches)
        self.accumulate = -(-largest // (micro_batch_size * ranks))
        self.ranks, self.rank = ranks, rank

    def __len__(self) -> int:
        return self.passes * self.minibatches * self.accumulate

    def __iter__(self) -> Iterator[TrainBatch]:
        generator = torch.Generator().manual_seed(self.seed)
        lengths = self.whole.rollout.attention_mask.sum(-1).cpu()
        for _ in range(self.passes):
            order = self.rows[torch.randperm(len(self.rows), generator=generator)]
            for rows in order.tensor_split(self.minibatches):
                yield from self._micro_batches(rows[lengths[rows].argsort(stable=True)])

    def _micro_batches(self, rows: Tensor) -> Iterator[TrainBatch]:
        minibatch = self.whole.select(rows)
        tokens = minibatch.rollout
        weights = self.aggregation(tokens.action_mask, tokens.trajectory_ids, self.lengths[rows])
        minibatch = replace(minibatch, weights=weights)
        parts = torch.arange(len(rows)).tensor_split(self.accumulate * self.ranks)
        for part in parts[self.rank :: self.ranks]:
            if len(part):
                yield minibatch.select(part)
            else:  # fewer rows than parts: the shortest fills in
                filler = minibatch.select(torch.tensor([0]))
                yield replace(filler, weights=torch.zeros_like(filler.weights))


class NoMinibatches:
    """An iteration without a step: no group was worth a gradient.

    Lightning would end the run at a loader of length 0; a batch that is None it passes over.
    """

    accumulate = 1

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[None]:
        yield None
