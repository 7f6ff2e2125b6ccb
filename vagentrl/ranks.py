"""Communication between the ranks (processes) of a run. A single process is rank 0 of 1.

The ranks share what takes time: episodes, forward passes and gradients. Everything else each rank
computes from all ranks' episodes, so that all ranks get the same result as a single process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from itertools import chain, zip_longest
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from PIL.Image import Image
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from vagentrl.errors import VagentError
from vagentrl.pictures import RemotePicture, digest

T = TypeVar("T")

_MISSING: Any = object()

_chosen: ContextVar[ProcessGroup | None] = ContextVar("group", default=None)
_for_cpu: WeakKeyDictionary[ProcessGroup, ProcessGroup] = WeakKeyDictionary()
"""For a default group that only takes what is on GPUs, the group of the same ranks for the CPU."""


def world_size() -> int:
    """The number of ranks."""
    return distributed.get_world_size() if _are_several() else 1


def rank() -> int:
    """The number of this rank, from 0."""
    return distributed.get_rank() if _are_several() else 0


def _are_several() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def group() -> ProcessGroup | None:
    """The group of all ranks that this thread talks over; None for a single process."""
    return _group() if world_size() > 1 else None


def _group() -> ProcessGroup:
    """The group of all ranks that this thread talks over, which takes what is on the CPU."""
    chosen, world = _chosen.get(), distributed.group.WORLD
    if chosen is not None:
        return chosen
    assert world is not None
    if distributed.get_backend(world) == "gloo":
        return world
    if world not in _for_cpu:  # all ranks come here together
        _for_cpu[world] = _new_group()
    return _for_cpu[world]


def _new_group() -> ProcessGroup:
    return distributed.new_group(backend="gloo")  # pyright: ignore[reportReturnType]


class Line:
    """A connection of all ranks for a thread besides the main one.

    Two threads of a rank that talked over one group would mix up what they say. All ranks must make
    a line together, and must close it together.
    """

    def __init__(self) -> None:
        self._own = _new_group() if world_size() > 1 else None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Inside this context all functions of this module talk over this line."""
        before = _chosen.set(self._own)
        try:
            yield
        finally:
            _chosen.reset(before)

    def close(self) -> None:
        """Destroy the connection, unless all connections have been destroyed."""
        if self._own is not None and _are_several():
            distributed.destroy_process_group(self._own)
        self._own = None


def shard(items: Sequence[T]) -> Sequence[T]:
    """This rank's share of the items, dealt in turn: rank r of n gets items r, r + n, r + 2n, …"""
    return items[rank() :: world_size()]


def gather(mine: Sequence[T]) -> list[T]:
    """All ranks' items, in the order in which `shard` dealt them.

    This rank's own items are returned as they are; those of other ranks are pickled copies, whose
    pictures are stand-ins (`RemotePicture`): pixels stay where they are.
    """
    if world_size() == 1:
        return list(mine)
    packed: list[Any] = [None] * world_size()
    distributed.all_gather_object(packed, _without_pixels(list(mine)), group=_group())
    others = set(range(world_size())) - {rank()}
    everyones = [pickle.loads(packed[r]) if r in others else mine for r in range(world_size())]
    dealt = chain.from_iterable(zip_longest(*everyones, fillvalue=_MISSING))
    return [item for item in dealt if item is not _MISSING]


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Image) and not isinstance(obj, RemotePicture):
            return RemotePicture, (obj.size, digest(obj), rank())
        return NotImplemented


def _without_pixels(items: object) -> bytes:
    _Pickler(file := BytesIO(), pickle.HIGHEST_PROTOCOL).dump(items)
    return file.getvalue()


def exchange(pack: Callable[[], Sequence[bytes]]) -> list[memoryview]:
    """Send each rank a parcel of its own; if `pack` fails on one rank, it fails on all.

    Args:
        pack: Returns this rank's parcel for each rank.

    Returns:
        The parcel that each rank has sent to this one.

    Raises:
        Exception: What ``pack`` raised on a rank, if it is an `OSError` or one of ours.
    """
    parcels, failure = [], None
    try:
        parcels = pack()
    except (OSError, VagentError) as error:
        failure = error
    told = gather([([len(parcel) for parcel in parcels], failure)])
    for _, failure in told:
        if failure is not None:
            raise failure
    if world_size() == 1:
        return [memoryview(parcel) for parcel in parcels]
    sizes = [lengths[rank()] for lengths, _ in told]
    received = torch.empty(sum(sizes), dtype=torch.uint8)
    lengths = told[rank()][0]
    joined = bytearray().join([*parcels, b"\0"])  # a tensor is made of at least a byte
    sent = torch.frombuffer(joined, dtype=torch.uint8)[:-1]
    distributed.all_to_all_single(received, sent, sizes, lengths, group=_group())
    return [part.numpy().data for part in received.split(sizes)]


def wait_for_all() -> None:
    """Return when all ranks have called this."""
    gather([None])


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
    """Replace a tensor on the CPU by its sum over all ranks."""
    if world_size() > 1:
        distributed.all_reduce(tensor, group=_group())
