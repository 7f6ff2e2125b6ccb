"""What a drawing shows, in words, as JSON and as a grid of colours.

Shapes are measured in the picture itself, one at a time, so that transforms, strokes and gradients
are described as they look.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from xml.etree.ElementTree import tostring

import numpy as np

from vagentrl.types import State
from vagentrl_envs.svg.markup import parse_clean, shapes
from vagentrl_envs.svg.picture import drawn, on_paper

COLORS: dict[str, tuple[str, tuple[int, int, int]]] = {
    "white": (".", (255, 255, 255)),
    "black": ("k", (0, 0, 0)),
    "gray": ("a", (128, 128, 128)),
    "red": ("r", (255, 0, 0)),
    "orange": ("o", (255, 165, 0)),
    "yellow": ("y", (255, 255, 0)),
    "green": ("g", (0, 128, 0)),
    "cyan": ("c", (0, 255, 255)),
    "blue": ("b", (0, 0, 255)),
    "purple": ("p", (128, 0, 128)),
    "pink": ("i", (255, 192, 203)),
    "brown": ("n", (165, 42, 42)),
}
"""The colours that are told apart, as CSS defines them, each with its symbol in a grid."""

CELLS = 8
"""Rows and columns of the grid of colours."""
_SIDE = 100
"""Pixels on which shapes are measured, so that a pixel is a hundredth of the picture."""
_TRACE = 5
"""Opacity from which a pixel belongs to a shape, of 255."""
_NAMES = {"rect": "rectangle"}


@dataclass(frozen=True)
class Shape:
    """A shape as it looks; positions and sizes are hundredths of the picture.

    Attributes:
        shape: What it is: circle, ellipse, rectangle, line, polygon, polyline or path.
        color: The one of `COLORS` that most of its pixels are nearest to.
        x: Centre from the left edge.
        y: Centre from the upper edge.
        width: From its left to its right end.
        height: From its upper to its lower end.
    """

    shape: str
    color: str
    x: int
    y: int
    width: int
    height: int

    def __str__(self) -> str:
        article = "an" if self.color == "orange" else "a"
        return (
            f"{article} {self.color} {self.shape} at ({self.x}, {self.y}), {self.width} wide, "
            f"{self.height} high"
        )


@lru_cache(maxsize=256)
def visible_shapes(markup: str) -> tuple[Shape, ...]:
    """The shapes of a drawing that leave a trace on the paper, from the lowest to the topmost."""
    root = parse_clean(markup)
    elements = list(shapes(root))
    displayed = [element.get("display", "inline") for element in elements]
    for element in elements:
        element.set("display", "none")
    found = []
    for element, display in zip(elements, displayed, strict=True):
        element.set("display", display)
        alone = _look(tostring(root, encoding="unicode"))
        element.set("display", "none")
        if alone is not None:
            found.append(Shape(_NAMES.get(element.tag, element.tag), *alone))
    return tuple(found)


def _look(markup: str) -> tuple[str, int, int, int, int] | None:
    """Colour, centre and extent of what a drawing leaves on the paper; None if that is nothing."""
    pixels = drawn(markup, _SIDE)
    there = pixels[..., 3] > _TRACE
    rows, columns = np.flatnonzero(there.any(1)), np.flatnonzero(there.any(0))
    if not len(rows):
        return None
    left, right = int(columns[0]), int(columns[-1]) + 1
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    color = _commonest(pixels[pixels[..., 3] > 127, :3])
    return (color, (left + right) // 2, (top + bottom) // 2, right - left, bottom - top)


def _commonest(pixels: np.ndarray) -> str:
    """Name of the colour of `COLORS` to which most of the pixels, `(n, 3)` from 0 to 255, are
    nearest."""
    table = np.array([values for _, values in COLORS.values()])
    apart = np.square(pixels[:, None].astype(int) - table).sum(2)
    counts = np.bincount(apart.argmin(1), minlength=len(COLORS))
    return list(COLORS)[int(counts.argmax())]


@lru_cache(maxsize=256)
def grid(markup: str | None) -> tuple[str, ...]:
    """The commonest colour of each cell of a drawing: a symbol each, row by row."""
    pixels = (on_paper(markup, 8 * CELLS) * 255).round()
    cells = pixels.reshape(CELLS, 8, CELLS, 8, 3).transpose(0, 2, 1, 3, 4)
    cells = cells.reshape(CELLS, CELLS, 64, 3)
    return tuple("".join(COLORS[_commonest(cell)][0] for cell in row) for row in cells)


def describe(target: str, drawing: str | None) -> State:
    """What a target shows, and what a drawing shows (None for an empty page)."""
    wanted = visible_shapes(target)
    there = () if drawing is None else visible_shapes(drawing)
    rows = zip(grid(target), grid(drawing), strict=True)
    return State(
        natural="; ".join(_told("target", wanted) + _told("drawing", there)),
        structured=json.dumps(
            {"target": [asdict(s) for s in wanted], "drawing": [asdict(s) for s in there]},
            separators=(",", ":"),
        ),
        symbolic="\n".join("|".join(row) for row in rows),
    )


def _told(where: str, found: tuple[Shape, ...]) -> list[str]:
    return [f"the {where} has {shape}" for shape in found] or [f"the {where} is empty"]
