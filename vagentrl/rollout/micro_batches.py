"""Divides the rows of a minibatch among ranks, and each rank's rows into micro-batches."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence

Part = list[int]
"""A micro-batch: places of rows in their minibatch. An empty one is to be filled up."""


def by_rows(rows: int, passes: int, ranks: int) -> list[list[Part]]:
    """Parts of as many rows as each other, to within one.

    Args:
        rows: Rows of the minibatch, sorted by length.
        passes: Number of parts of each rank.
        ranks: Number of ranks; neighbouring parts go to different ranks.

    Returns:
        For each rank its parts.
    """
    count = passes * ranks
    size, larger = divmod(rows, count)  # the first `larger` parts have a row more
    starts = [part * size + min(part, larger) for part in range(count + 1)]
    parts = [list(range(starts[part], starts[part + 1])) for part in range(count)]
    return [parts[rank::ranks] for rank in range(ranks)]


def passes_for(lengths: Sequence[int], budget: int, ranks: int) -> int:
    """How many parts each rank needs for the rows, if no part exceeds the budget.

    Args:
        lengths: Tokens of the minibatch's rows, ascending.
        budget: Most tokens of a part, padding included. A longer row is a part of its own.
        ranks: Number of ranks.
    """
    return -(-len(_within(lengths, budget)) // ranks)


def by_tokens(lengths: Sequence[int], budget: int, passes: int, ranks: int) -> list[list[Part]]:
    """Parts with as equal numbers of tokens as rows of like length allow.

    Args:
        lengths: Tokens of the minibatch's rows, ascending.
        budget: See `passes_for`.
        passes: Number of parts of each rank, at least what `passes_for` says.
        ranks: Number of ranks. The parts are dealt to them, the longest first, each to the rank
            with the fewest tokens so far.

    Returns:
        For each rank its parts, the longest first.
    """
    count = passes * ranks
    # The smallest budget for which they suffice, so that no part is much smaller than the others.
    smallest = bisect_left(
        range(1, budget), True, key=lambda tokens: len(_within(lengths, tokens)) <= count
    )
    parts = _level(_within(lengths, 1 + smallest), count)
    return _deal(parts, lengths, passes, ranks)


def empty_share(divided: Sequence[Sequence[Sequence[Part]]]) -> float:
    """The share of parts without a row, over ranks and minibatches."""
    parts = [part for shares in divided for share in shares for part in share]
    return sum(not part for part in parts) / max(len(parts), 1)


def padded(part: Part, lengths: Sequence[int]) -> int:
    """Tokens of a part, padding included; an empty one is filled up with the shortest row."""
    return len(part) * lengths[part[-1]] if part else lengths[0]


def _within(lengths: Sequence[int], budget: int) -> list[Part]:
    """Neighbouring rows together, as many as the budget allows once all are as long as the last."""
    parts: list[Part] = []
    for place, length in enumerate(lengths):
        if parts and (len(parts[-1]) + 1) * length <= budget:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


def _level(parts: list[Part], count: int) -> list[Part]:
    """Halve the parts with the most rows until there are `count`; then add empty ones."""
    while len(parts) < count:
        largest = max(range(len(parts)), key=lambda number: len(parts[number]), default=None)
        if largest is None or len(parts[largest]) < 2:
            return parts + [[] for _ in range(count - len(parts))]
        half = len(parts[largest]) // 2
        parts[largest : largest + 1] = [parts[largest][:half], parts[largest][half:]]
    return parts


def _deal(parts: list[Part], lengths: Sequence[int], passes: int, ranks: int) -> list[list[Part]]:
    dealt: list[list[Part]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for part in sorted(parts, key=lambda part: padded(part, lengths), reverse=True):
        load, rank = heapq.heappop(loads)
        dealt[rank].append(part)
        if len(dealt[rank]) < passes:
            heapq.heappush(loads, (load + padded(part, lengths), rank))
    return dealt
