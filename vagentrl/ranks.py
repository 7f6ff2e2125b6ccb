"""Communication between the ranks (processes) of a run. A single process is rank 0 of 1.

The ranks share what takes time: episodes, forward passes and gradients. Everything else each rank
computes from all ranks' episodes, so that all ranks get the same result as a single process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from lightning import Trainer
from torch import Tensor, distributed

from vagentrl.errors import VagentError

T = TypeVar("T")

_MISSING: Any = object()


def world_size() -> int:
    """The number of ranks."""
    return distributed.get_world_size() if _are_several() else 1


def rank() -> int:
    """The number of this rank, from 0."""
    return distributed.get_rank() if _are_several() else 0


def _are_several() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def shard(items: Sequence[T]) -> Sequence[T]:
    """This rank's share of the items, dealt in turn: rank r of n gets items r, r + n, r + 2n, …"""
    return items[rank() :: world_size()]


def gather(mine: Sequence[T]) -> list[T]:
    """All ranks' items, in the order in which `shard` dealt them.

    This rank's own items are returned as they are; those of other ranks are pickled copies.
    """
    if world_size() == 1:
        return list(mine)
    everyones: list[Any] = [None] * world_size()
    distributed.all_gather_object(everyones, list(mine))
    everyones[rank()] = mine
    dealt = chain.from_iterable(zip_longest(*everyones, fillvalue=_MISSING))
    return [item for item in dealt if item is not _MISSING]


def wait_for_all() -> None:
    """Return when all ranks have called this."""
    gather([None])  # NCCL's own barrier has to guess the device


def on_first(do: Callable[[], T]) -> T:
    """Do something on rank 0 while the others wait; if it fails, it fails on all ranks.

    Returns:
        What ``do`` returned on rank 0; the other ranks get a pickled copy.

    Raises:
        Exception: What ``do`` raised, if it is an `OSError` or one of ours.
    """
    result: Any = None
    failure: Exception | None = None
    if rank() == 0:
        try:
            result = do()
        except (OSError, VagentError) as error:
            failure = error
    result, failure = gather([(result, failure)])[0]
    if failure is not None:
        raise failure
    return result


def sum_counts(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Sum counts over all ranks by name; a name that a rank does not have counts as 0 there."""
    everyones = gather([counts])
    names = dict.fromkeys(chain.from_iterable(everyones))
    return {name: sum(counts.get(name, 0) for counts in everyones) for name in names}


def sum_over_ranks(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all ranks."""
    if world_size() > 1:
        distributed.all_reduce(tensor)


def run_folder(trainer: Trainer) -> Path:
    """The folder that a run writes to. All ranks must call this together: rank 0 broadcasts it.

    With a logger that keeps no folder for each run, as that of Weights & Biases or MLflow, the
    folder is where `ModelCheckpoint` puts this run's checkpoints: ``save_dir/name/version``.
    """
    logger = trainer.loggers[0] if trainer.loggers else None
    folder = Path(trainer.log_dir or trainer.default_root_dir)
    if logger is not None and not logger.log_dir and logger.version is not None:
        version = logger.version
        folder /= f"{logger.name}/{version if isinstance(version, str) else f'version_{version}'}"
    return Path(trainer.strategy.broadcast(str(folder)))
