"""Splits a collected batch into shuffled minibatches and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vagentrl.losses import Aggregation, trajectory_lengths
from vagentrl.models.packing import reading_order
from vagentrl.rollout.exchange import bring_rows
from vagentrl.rollout.micro_batches import Part, by_rows, by_tokens, empty_share, passes_for
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch


class MinibatchLoader:
    """Iterates over the micro-batches of a batch, in several shuffled passes.

    Every minibatch has the same number of micro-batches on each rank, `accumulate`, after which the
    optimizer takes a step. The rows of a minibatch are sorted by length before they are divided,
    which keeps padding small, or by what they begin with, for packed reading.

    All is on the CPU, and the images of a micro-batch are pixels. Those of a minibatch are brought
    to the ranks that learn its rows when it begins, so all ranks must iterate together.

    Args:
        rollout: The rows to learn from, the same on all ranks.
        scores: Scores of the rows.
        credit: Advantages and returns of the rows.
        aggregation: Gives each token its weight in the loss of its minibatch.
        minibatch_size: Approximate number of rows in one optimizer step; the actual number makes
            all minibatches equally large, to within one row.
        micro_batch_size: Maximum number of rows in one forward and backward pass; only read
            without `micro_batch_tokens`.
        micro_batch_tokens: Maximum number of tokens in one forward and backward pass, padding
            included; a longer row gets a pass of its own. The ranks then get nearly the same
            number of tokens, not of rows.
        passes: How often each row is used (RAGEN's online-k).
        seed: Seeds the order of the rows, and the random choice of `part`.
        part: Share of the rows to learn from, drawn at random.
        by_prefix: Sort the rows of a minibatch so that those that share a prefix are neighbours,
            unless `micro_batch_tokens` is given.
        ranks: Number of ranks. Each rank takes its share of every minibatch's micro-batches, and
            the gradient is the sum over ranks.
        rank: The number of this rank.

    Attributes:
        fillers: Share of all ranks' micro-batches that only fill up, with a row of weight 0.
    """

    def __init__(
        self,
        rollout: RolloutBatch,
        scores: Scores,
        credit: Credit,
        aggregation: Aggregation,
        *,
        minibatch_size: int,
        micro_batch_size: int | None,
        micro_batch_tokens: int | None = None,
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
        # A row without a sampled token only holds a final observation to bootstrap from.
        learns = rollout.action_mask.any(-1).nonzero().flatten().cpu()
        generator = torch.Generator().manual_seed(seed + 1)
        order = torch.randperm(len(learns), generator=generator)
        self.rows = learns[order[: max(1, round(part * len(learns)))]].sort().values
        self.minibatches = max(1, round(len(self.rows) / minibatch_size))
        self.rank = rank
        lengths = rollout.attention_mask.sum(-1).cpu()
        together = by_prefix and micro_batch_tokens is None  # a budget is kept in order of length
        place = reading_order(rollout).argsort() if together else lengths
        self._minibatches = [
            rows[place[rows].argsort(stable=True)] for rows in self._shuffled(passes, seed)
        ]
        if micro_batch_tokens is None:
            assert micro_batch_size is not None
            largest = max(map(len, self._minibatches))
            self.accumulate = -(-largest // (micro_batch_size * ranks))
            self._parts = [by_rows(len(rows), self.accumulate, ranks) for rows in self._minibatches]
        else:
            sizes = [lengths[rows].tolist() for rows in self._minibatches]
            self.accumulate = max(passes_for(size, micro_batch_tokens, ranks) for size in sizes)
            self._parts = [
                by_tokens(size, micro_batch_tokens, self.accumulate, ranks) for size in sizes
            ]
        self.fillers = empty_share(self._parts)

    def _shuffled(self, passes: int, seed: int) -> Iterator[Tensor]:
        """The rows of each minibatch, pass after pass."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(passes):
            order = self.rows[torch.randperm(len(self.rows), generator=generator)]
            yield from order.tensor_split(self.minibatches)

    def __len__(self) -> int:
        return len(self._minibatches) * self.accumulate

    def __iter__(self) -> Iterator[TrainBatch]:
        for rows, shares in zip(self._minibatches, self._parts, strict=True):
            yield from self._micro_batches(rows, shares[self.rank])

    def _micro_batches(self, rows: Tensor, parts: list[Part]) -> Iterator[TrainBatch]:
        minibatch = self.whole.select(rows)
        tokens = minibatch.rollout
        weights = self.aggregation(
            tokens.action_mask, tokens.turn_ids, tokens.trajectory_ids, self.lengths[rows]
        )
        # The first row fills up where there are fewer rows than micro-batches.
        tokens = bring_rows(tokens, {row for part in parts for row in part or [0]})
        minibatch = replace(minibatch, rollout=tokens, weights=weights)
        for part in parts:
            if part:
                yield minibatch.select(torch.tensor(part))
            else:
                filler = minibatch.select(torch.tensor([0]))  # at weight 0
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
