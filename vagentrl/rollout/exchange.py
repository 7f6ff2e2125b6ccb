"""Brings pictures from the ranks that played their episodes to those that need the pixels."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

from PIL.Image import Image

from vagentrl import ranks
from vagentrl.errors import VagentError
from vagentrl.pictures import RemotePicture, digest
from vagentrl.types import Pictures, RolloutBatch, Trajectory


def bring(images: Sequence[Image], wanted: Iterable[int]) -> tuple[Image, ...]:
    """Get the pixels of some images. All ranks must call this together.

    Args:
        images: The same images in the same order on all ranks; each rank has the pixels of some.
        wanted: Places of the images whose pixels this rank needs.

    Returns:
        The images; the wanted ones have pixels.

    Raises:
        VagentError: On all ranks, when a rank does not have an image that another asks it for.
    """
    if ranks.world_size() == 1:
        return tuple(images)
    asked: defaultdict[int, list[int]] = defaultdict(list)
    for place in sorted(set(wanted)):
        if isinstance(image := images[place], RemotePicture):
            asked[image.rank].append(place)
    everyones = ranks.gather([dict(asked)])
    if not any(everyones):
        return tuple(images)

    def pack() -> list[bytes]:
        return [_pack(images, each.get(ranks.rank(), ())) for each in everyones]

    brought = list(images)
    for rank, parcel in enumerate(ranks.exchange(pack)):
        for place, image in zip(asked[rank], pickle.loads(parcel), strict=True):
            brought[place] = image
    return tuple(brought)


def bring_rows(rollout: RolloutBatch, rows: Iterable[int]) -> RolloutBatch:
    """Get the pixels of the images that some rows show. All ranks must call this together.

    Args:
        rollout: The batch, with the same rows on all ranks.
        rows: The rows that this rank reads.

    Returns:
        The batch; the images of these rows have pixels.
    """
    vision = rollout.vision
    if not isinstance(vision, Pictures):
        return rollout
    images = bring(vision.images, (image for row in rows for image in vision.rows[row]))
    return replace(rollout, vision=replace(vision, images=images))


def with_pixels(trajectories: Sequence[Trajectory], *, here: bool) -> list[Trajectory]:
    """Get the pixels of all that was seen in some episodes. All ranks must call this together.

    Args:
        trajectories: The episodes, the same on all ranks.
        here: Whether this rank needs the pixels.

    Returns:
        The trajectories, on ranks that need the pixels copies with all pixels.
    """
    if ranks.world_size() == 1:
        return list(trajectories)
    images: dict[bytes, Image] = {}
    _Taker(packed := BytesIO(), images).dump(list(trajectories))
    brought = bring(list(images.values()), range(len(images)) if here else ())
    if not here:
        return list(trajectories)
    packed.seek(0)
    return _Putter(packed, dict(zip(images, brought, strict=True))).load()


def _pack(images: Sequence[Image], places: Collection[int]) -> bytes:
    for place in places:
        if isinstance(image := images[place], RemotePicture):
            raise VagentError(
                f"rank {ranks.rank()} was asked for the pixels of a picture of {image.width} x "
                f"{image.height}, but they are with rank {image.rank}; pass on pictures only "
                "through vagentrl.ranks.gather, from the rank that played their episode"
            )
    return pickle.dumps([images[place] for place in places], pickle.HIGHEST_PROTOCOL)


class _Taker(pickle.Pickler):
    """Takes the images out of what it pickles, and collects them by their digest."""

    def __init__(self, file: BytesIO, images: dict[bytes, Image]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._images = images

    def persistent_id(self, obj: Any) -> bytes | None:
        if not isinstance(obj, Image):
            return None
        key = digest(obj)
        if key not in self._images or isinstance(self._images[key], RemotePicture):
            self._images[key] = obj  # it may have the pixels
        return key


class _Putter(pickle.Unpickler):
    """Puts the images back."""

    def __init__(self, file: BytesIO, images: dict[bytes, Image]) -> None:
        super().__init__(file)
        self._images = images

    def persistent_load(self, pid: bytes) -> Image:
        return self._images[pid]
