"""Splits a collected batch into shuffled minibatches and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vagentrl.losses import Aggregation, trajectory_lengths
from vagentrl.models.packing import reading_order
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch


class MinibatchLoader:
    """Iterates over the micro-batches of a batch, in several shuffled passes.

    Every minibatch has the same number of micro-batches, `accumulate`, after which the optimizer
    takes a step. The rows of a minibatch are sorted by length before they are split into
    micro-batches, which keeps padding small, or by what they begin with, for packed reading.

    Args:
        rollout: The rows to learn from.
        scores: Scores of the rows.
        credit: Advantages and returns of the rows.
        aggregation: Gives each token its weight in the loss of its minibatch.
        minibatch_size: Approximate number of rows in one optimizer step; the actual number makes
            all minibatches equally large, to within one row.
        micro_batch_size: Maximum number of rows in one forward and backward pass.
        passes: How often each row is used (RAGEN's online-k).
        seed: Seeds the order of the rows, and the random choice of `part`.
        part: Share of the rows to learn from, drawn at random.
        by_prefix: Sort the rows of a minibatch so that those that share a prefix are neighbours.
        ranks: Number of ranks. Each rank takes its share of every minibatch's micro-batches, and
            the gradient is the sum over ranks.
        rank: The number of this rank.
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
        by_prefix: bool = False,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        self.whole = TrainBatch(rollout, scores, credit, torch.zeros_like(rollout.rewards))
        self.aggregation = aggregation
        self.lengths = trajectory_lengths(rollout.action_mask, rollout.trajectory_ids)
        self.passes = passes
        self.seed = seed
        # A row without a sampled token only holds a final observation to bootstrap from.
        learns = rollout.action_mask.any(-1).nonzero().flatten().cpu()
        generator = torch.Generator().manual_seed(seed + 1)
        order = torch.randperm(len(learns), generator=generator)
        self.rows = learns[order[: max(1, round(part * len(learns)))]].sort().values
        rows = len(self.rows)
        self.minibatches = max(1, round(rows / minibatch_size))
        largest = -(-rows // self.minibatches)
        self.accumulate = -(-largest // (micro_batch_size * ranks))
        self.ranks, self.rank = ranks, rank
        lengths = rollout.attention_mask.sum(-1).cpu()
        self._sorted_by = reading_order(rollout).argsort() if by_prefix else lengths

    def __len__(self) -> int:
        return self.passes * self.minibatches * self.accumulate

    def __iter__(self) -> Iterator[TrainBatch]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.passes):
            order = self.rows[torch.randperm(len(self.rows), generator=generator)]
            for rows in order.tensor_split(self.minibatches):
                yield from self._micro_batches(rows[self._sorted_by[rows].argsort(stable=True)])

    def _micro_batches(self, rows: Tensor) -> Iterator[TrainBatch]:
        minibatch = self.whole.select(rows)
        tokens = minibatch.rollout
        weights = self.aggregation(
            tokens.action_mask, tokens.turn_ids, tokens.trajectory_ids, self.lengths[rows]
        )
        minibatch = replace(minibatch, weights=weights)
        parts = torch.arange(len(rows)).tensor_split(self.accumulate * self.ranks)
        for part in parts[self.rank :: self.ranks]:
            if len(part):
                yield minibatch.select(part)
            else:  # fewer rows than micro-batches: fill up with the first row, at weight 0
                filler = minibatch.select(torch.tensor([0]))
                yield replace(filler, weights=torch.zeros_like(filler.weights))


class NoMinibatches:
    """Yields one batch that is None, for an iteration without groups to learn from.

    Lightning would end the run at a loader of length 0, but it skips a batch that is None.
    """

    accumulate = 1

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[None]:
        yield None
