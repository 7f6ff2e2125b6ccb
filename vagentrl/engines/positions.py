"""The token spans of images in a context, and the resulting rotary positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from vagentrl.errors import ShapeError

Grid = tuple[int, int, int]  # number of patches in time, height and width


def image_spans(
    ids: Sequence[int], image_token_id: int, grids: Sequence[Grid], merge_size: int
) -> list[tuple[int, int]]:
    """Return the half-open token span ``(start, stop)`` of every image, in reading order.

    Args:
        ids: Token ids of the whole context.
        image_token_id: The image token's id.
        grids: Patch grid of each image.
        merge_size: Patches per image token along each side.

    Raises:
        ShapeError: When the number of image tokens does not fit the grids.
    """
    places = np.flatnonzero(np.asarray(ids) == image_token_id)
    sizes = [t * h * w // merge_size**2 for t, h, w in grids]
    if sum(sizes) != len(places):
        raise ShapeError(
            f"{len(sizes)} images need {sum(sizes)} image tokens but the context holds "
            f"{len(places)} (id {image_token_id}); write one for every {merge_size} x {merge_size} "
            "patches of each image"
        )
    firsts = np.cumsum([0, *sizes])[:-1]
    starts = [int(places[first]) for first in firsts]
    return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def mrope_positions(
    ids: Sequence[int], image_token_id: int, grids: Sequence[Grid], merge_size: int
) -> Int[np.ndarray, "3 T"]:
    """Return mrope positions (time, height, width) of still images in Qwen2-VL, 2.5-VL and 3-VL.

    A text token advances all three axes by one. The tokens of an image get the coordinates of a
    grid that starts at the next text position; text then continues after the grid's longer side.
    The arguments are those of `image_spans`.
    """
    positions = np.empty((3, len(ids)), dtype=np.int64)
    done = following = 0  # number of tokens with a position; position of the next token
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
