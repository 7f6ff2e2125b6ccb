"""Where the images of a context lie, and the rotary positions that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from vagentrl.errors import ShapeError

Grid = tuple[int, int, int]


def image_spans(
    ids: Sequence[int], image_token_id: int, grids: Sequence[Grid], merge_size: int
) -> list[tuple[int, int]]:
    """First token and the one after the last of every image, in reading order.

    Args:
        ids: The whole context.
        image_token_id: The token that stands for a piece of an image.
        grids: Patches of each image in time, height and width.
        merge_size: Patches that make one token, along each side.
    """
    places = np.flatnonzero(np.asarray(ids) == image_token_id)
    sizes = [t * h * w // merge_size**2 for t, h, w in grids]
    if sum(sizes) != len(places):
        raise ShapeError(
            f"{len(grids)} images make {sum(sizes)} tokens but the context holds {len(places)} "
            f"image tokens (id {image_token_id}); expand each image to as many as it has patches "
            f"after merging {merge_size} x {merge_size}"
        )
    ends = np.cumsum(sizes, dtype=int)
    return [(int(places[end - size]), int(places[end - size]) + size) for end, size in zip(ends, sizes, strict=True)]


def mrope_positions(
    ids: Sequence[int], image_token_id: int, grids: Sequence[Grid], merge_size: int
) -> Int[np.ndarray, "3 T"]:
    """Positions in time, height and width, as Qwen2-VL, 2.5-VL and 3-VL count still images.

    Text moves on by one on all three axes. An image lays its tokens on a grid that starts where
    the text stopped, and the text goes on after the grid's longer side.
    """
    positions = np.empty((3, len(ids)), dtype=np.int64)
    written = following = 0
    spans = image_spans(ids, image_token_id, grids, merge_size)
    for (start, stop), (t, h, w) in zip(spans, grids, strict=True):
        following += start - written
        positions[:, written:start] = np.arange(following - (start - written), following)
        shape = (t, h // merge_size, w // merge_size)
        positions[:, start:stop] = following + np.indices(shape).reshape(3, -1)
        following += max(shape[1:])
        written = stop
    positions[:, written:] = np.arange(following, following + len(ids) - written)
    return positions
