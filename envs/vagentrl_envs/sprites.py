"""Pictures of grids, drawn from formulas so that they are crisp at any size."""

from __future__ import annotations

import numpy as np
from PIL import Image

Color = tuple[int, int, int]

_SUBPIXELS = 4
"""Samples per pixel and axis; their mean smooths the edges."""


def tiled(codes: np.ndarray, atlas: np.ndarray) -> Image.Image:
    """The picture of a grid: `codes` number the `(n, cell, cell, 3)` sprites of `atlas`."""
    rows, columns = codes.shape
    cell = atlas.shape[1]
    pixels = atlas[codes].transpose(0, 2, 1, 3, 4)
    return Image.fromarray(pixels.reshape(rows * cell, columns * cell, 3))


class Sprite:
    """A canvas from (0, 0) at the top left to (1, 1); subclasses paint on it.

    Args:
        cell: Pixels of the finished sprite along each side.
        color: What it is filled with.

    Attributes:
        x: Where each sample lies, from left to right.
        y: The same from top to bottom.
    """

    def __init__(self, cell: int, color: Color) -> None:
        samples = cell * _SUBPIXELS
        line = (np.arange(samples) + 0.5) / samples
        self.x, self.y = np.meshgrid(line, line)
        self._canvas = np.empty((samples, samples, 3))
        self._canvas[:] = color

    def paint(self, where: np.ndarray, color: Color) -> None:
        """Color the samples under a mask."""
        self._canvas[where] = color

    def distance(self, x: float, y: float) -> np.ndarray:
        """Of each sample from a point."""
        return np.hypot(self.x - x, self.y - y)

    def pixels(self) -> np.ndarray:
        """`(cell, cell, 3)`, the mean of each pixel's samples."""
        size = len(self._canvas) // _SUBPIXELS
        blocks = self._canvas.reshape(size, _SUBPIXELS, size, _SUBPIXELS, 3)
        return blocks.mean((1, 3)).round().astype(np.uint8)
