"""Divides the rows of a minibatch among ranks, and each rank's rows into micro-batches."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain

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


def by_tokens(lengths: Sequence[int], budget: int, ranks: int) -> list[list[Part]]:
    """Parts within a budget of tokens, and ranks with nearly the same number of tokens.

    Args:
        lengths: Tokens of the minibatch's rows, ascending.
        budget: Most tokens of a part, padding included. A longer row is a part of its own.
        ranks: Number of ranks.

    Returns:
        For each rank its parts, shortest rows first. Not all ranks need have the same number;
        `level` makes it the same.
    """
    return [_within(places, lengths, budget) for places in _deal(lengths, ranks)]


def level(parts: list[Part], count: int) -> list[Part]:
    """Halve the parts with the most rows until there are `count`; then add empty ones.

    Args:
        parts: Parts whose rows are sorted by length.
        count: How many there must be, at least as many as there are.
    """
    parts = [*parts]
    while len(parts) < count:
        largest = max(range(len(parts)), key=lambda part: len(parts[part]), default=None)
        if largest is None or len(parts[largest]) < 2:
            return parts + [[] for _ in range(count - len(parts))]
        half = len(parts[largest]) // 2
        parts[largest : largest + 1] = [parts[largest][:half], parts[largest][half:]]
    return parts


def _deal(lengths: Sequence[int], ranks: int) -> list[Part]:
    """Give each row, the longest first, to the rank with the fewest tokens so far."""
    dealt: list[Part] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for place in reversed(range(len(lengths))):
        load, rank = heapq.heappop(loads)
        dealt[rank].append(place)
        heapq.heappush(loads, (load + lengths[place], rank))
    return [places[::-1] for places in dealt]


def _within(places: Part, lengths: Sequence[int], budget: int) -> list[Part]:
    """Neighbouring rows together, as many as the budget allows once all are as long as the last."""
    parts: list[Part] = []
    for place in places:
        if parts and (len(parts[-1]) + 1) * lengths[place] <= budget:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


def empty_share(divided: Sequence[Sequence[Part]]) -> float:
    """The share of parts without a row."""
    parts = list(chain.from_iterable(divided))
    return sum(not part for part in parts) / max(len(parts), 1)
