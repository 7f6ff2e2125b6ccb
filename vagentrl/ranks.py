"""What the processes of a run tell each other; one process alone is rank 0 of 1.

They divide what takes time: episodes, forward passes, gradients. All else each of them does with
everything that was played, so that all come to the same, and to what one process would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from lightning import Trainer
from torch import Tensor, distributed

T = TypeVar("T")

_NOTHING: Any = object()


def world_size() -> int:
    """How many there are."""
    return distributed.get_world_size() if _are_several() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return distributed.get_rank() if _are_several() else 0


def _are_several() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def shard(items: Sequence[T]) -> Sequence[T]:
    """What falls to this rank, as cards are dealt: neighbours go to different ranks."""
    return items[rank() :: world_size()]


def gather(mine: Sequence[T]) -> list[T]:
    """What all ranks made of their shares, in the order of what was shared; this one's as it is."""
    if world_size() == 1:
        return list(mine)
    everyones: list[Any] = [None] * world_size()
    distributed.all_gather_object(everyones, list(mine))
    everyones[rank()] = mine
    dealt = chain.from_iterable(zip_longest(*everyones, fillvalue=_NOTHING))
    return [item for item in dealt if item is not _NOTHING]


def sum_counts(counts: Mapping[str, Any]) -> dict[str, Any]:
    """The sums over all ranks of what each has counted, under each name that any of them has."""
    everyones = gather([counts])
    names = dict.fromkeys(chain.from_iterable(everyones))
    return {name: sum(counts.get(name, 0) for counts in everyones) for name in names}


def sum_over_ranks(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all ranks."""
    if world_size() > 1:
        distributed.all_reduce(tensor)


def run_folder(trainer: Trainer) -> Path:
    """Where a run writes. All ranks must ask together: rank 0 tells the others."""
    return Path(trainer.log_dir or trainer.default_root_dir)
