"""Where the images of a context lie, and the rotary positions that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from vagentrl.errors import ShapeError

Grid = tuple[int, int, int]  # patches in time, height and width


def image_spans(
    ids: Sequence[int], image_token_id: int, grids: Sequence[Grid], merge_size: int
) -> list[tuple[int, int]]:
    """First token, and the one after the last, of every image in reading order.

    Args:
        ids: The whole context.
        image_token_id: The token that stands for a piece of an image.
        grids: Patches of each image.
        merge_size: Patches that make one token, along each side.
    """
    places = np.flatnonzero(np.asarray(ids) == image_token_id)
    sizes = [t * h * w // merge_size**2 for t, h, w in grids]
    if sum(sizes) != len(places):
        raise ShapeError(
            f"{len(sizes)} images make {sum(sizes)} tokens but the context holds {len(places)} "
            f"image tokens (id {image_token_id}); write one for every {merge_size} x {merge_size} "
            "patches of each image"
        )
    firsts = np.cumsum([0, *sizes])[:-1]
    starts = [int(places[first]) for first in firsts]
    return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def mrope_positions(
    ids: Sequence[int], image_token_id: int, grids: Sequence[Grid], merge_size: int
) -> Int[np.ndarray, "3 T"]:
    """Positions in time, height and width, as Qwen2-VL, 2.5-VL and 3-VL count still images.

    Text moves on by one on all three axes. An image lays its tokens on a grid that starts where
    the text stopped; text goes on after the grid's longer side. Arguments as in `image_spans`.
    """
    positions = np.empty((3, len(ids)), dtype=np.int64)
    done = following = 0  # tokens that have a position, and the position of the next
    spans = image_spans(ids, image_token_id, grids, merge_size)
    for (start, stop), (t, h, w) in zip(spans, grids, strict=True):
        text = start - done
        positions[:, done:start] = following + np.arange(text)
        height, width = h // merge_size, w // merge_size
        grid = np.indices((t, height, width)).reshape(3, -1)
        positions[:, start:stop] = following + text + grid
        following += text + max(height, width)
        done = stop
    positions[:, done:] = following + np.arange(len(ids) - done)
    return positions
