"""Draws pictures from seeds, level by level, and reads them from files."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from vagentrl.environment import Split
from vagentrl.errors import ConfigError
from vagentrl_envs.svg.markup import NAMESPACE, Limits, Refused, clean
from vagentrl_envs.svg.picture import on_paper

Level = Literal[1, 2, 3, 4]

SIDE = 100
"""Units of the sides of a drawn picture."""
HUES = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "brown", "black")
_KINDS = ("circle", "rect", "ellipse", "polygon")
_TRIES = 200


def draw(level: Level, grid: int, rng: np.random.Generator) -> str:
    """An SVG of a level.

    1: one shape; 2: two or three shapes beside one another; 3: three or four that overlap; 4: three
    to five with strokes, gradients and paths.

    Args:
        level: How difficult it is.
        grid: Positions and sizes are multiples of so many hundredths of the picture.
        rng: The only source of randomness.
    """
    match level:
        case 1:
            bodies = [_filled(_place(grid, 30, 60, rng), rng)]
        case 2:
            bodies = _apart(int(rng.integers(2, 4)), grid, rng)
        case 3:
            count = int(rng.integers(3, 5))
            bodies = [_filled(_place(grid, 30, 70, rng), rng) for _ in range(count)]
        case _:
            bodies = _decorated(int(rng.integers(3, 6)), grid, rng)
    return svg("".join(bodies))


def svg(body: str) -> str:
    """A whole SVG with these elements."""
    return f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {SIDE} {SIDE}">{body}</svg>'


Box = tuple[int, int, int, int]
"""Left, top, width and height."""


def _place(grid: int, least: int, most: int, rng: np.random.Generator) -> Box:
    """A box on the grid, of even numbers of grid steps, so that its centre is on the grid too."""
    sides = [2 * grid * k for k in range(1, SIDE) if least <= 2 * grid * k <= most]
    width, height = (int(rng.choice(sides)) for _ in range(2))
    left, top = (grid * int(rng.integers(0, (SIDE - side) // grid + 1)) for side in (width, height))
    return left, top, width, height


def _filled(box: Box, rng: np.random.Generator, paint: str = "") -> str:
    """A basic shape in a box; a circle is as wide as the shorter side of it."""
    left, top, width, height = box
    x, y = left + width // 2, top + height // 2
    paint = paint or f'fill="{rng.choice(HUES)}"'
    match rng.choice(_KINDS):
        case "circle":
            return f'<circle cx="{x}" cy="{y}" r="{min(width, height) // 2}" {paint}/>'
        case "rect":
            return f'<rect x="{left}" y="{top}" width="{width}" height="{height}" {paint}/>'
        case "ellipse" if width != height:
            half = f'rx="{width // 2}" ry="{height // 2}"'
            return f'<ellipse cx="{x}" cy="{y}" {half} {paint}/>'
        case _:
            low = top + height
            return f'<polygon points="{left},{low} {x},{top} {left + width},{low}" {paint}/>'


def _apart(count: int, grid: int, rng: np.random.Generator) -> list[str]:
    """Shapes in boxes that do not touch."""
    boxes: list[Box] = []
    for _ in range(_TRIES):
        box = _place(grid, 20, 50, rng)
        if not any(_touch(box, other) for other in boxes):
            boxes.append(box)
        if len(boxes) == count:
            break
    return [_filled(box, rng) for box in boxes]


def _touch(a: Box, b: Box) -> bool:
    return all(
        a[axis] <= b[axis] + b[axis + 2] and b[axis] <= a[axis] + a[axis + 2] for axis in (0, 1)
    )


def _decorated(count: int, grid: int, rng: np.random.Generator) -> list[str]:
    """A shape with a gradient, a curve, an outline, and further ones of these."""
    makers = [_shaded, _curve, _outline]
    makers += [makers[int(rng.integers(3))] for _ in range(count - 3)]
    return [makers[k](_place(grid, 30, 70, rng), k, rng) for k in rng.permutation(count)]


def _shaded(box: Box, number: int, rng: np.random.Generator) -> str:
    first, second = rng.choice(HUES, 2, replace=False)
    across = 'x2="0" y2="1"' if rng.random() < 0.5 else 'x2="1" y2="0"'
    return (
        f'<linearGradient id="g{number}" {across}><stop offset="0" stop-color="{first}"/>'
        f'<stop offset="1" stop-color="{second}"/></linearGradient>'
        + _filled(box, rng, f'fill="url(#g{number})"')
    )


def _curve(box: Box, number: int, rng: np.random.Generator) -> str:
    left, top, width, height = box
    right, low, x = left + width, top + height, left + width // 2
    paint = f'fill="none" stroke="{rng.choice(HUES)}" stroke-width="{rng.choice([2, 4, 6])}"'
    if rng.random() < 0.5:
        return f'<path d="M{left} {low} Q{x} {top} {right} {low}" {paint}/>'
    return f'<path d="M{left} {top} C{right} {top} {left} {low} {right} {low}" {paint}/>'


def _outline(box: Box, number: int, rng: np.random.Generator) -> str:
    stroke = f'stroke="{rng.choice(HUES)}" stroke-width="{rng.choice([2, 4, 6])}"'
    return _filled(box, rng, f'fill="{rng.choice(["none", "white"])}" {stroke}')


def check_level(level: int, grid: int) -> None:
    """Raise unless pictures of a level can be drawn on a grid."""
    if level not in get_args(Level):
        raise ConfigError(f"level is {level}; give 1, 2, 3 or 4")
    if grid not in (1, 2, 5, 10):
        raise ConfigError(f"grid is {grid}; give 1, 2, 5 or 10 hundredths of the picture")


# --------------------------------------------------------------------------------- from a folder


@lru_cache(maxsize=8)
def read_drawings(folder: str, limits: Limits) -> dict[Split, tuple[str, ...]]:
    """The drawings in a folder of ``.svg`` files, dealt to the splits: a tenth each, and at least
    one, is for validation and for test.

    A drawing that occurs twice is read once. Which split it is in depends on what is drawn, and not
    on names.

    Raises:
        ConfigError: When a file is not drawn or is of a single colour, or there are fewer than
            three drawings.
    """
    paths = sorted(Path(folder).glob("*.svg"))
    found: dict[str, str] = {}
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
            markup = clean(text, limits)
            pixels = on_paper(markup, 64)
        except Refused as error:
            raise ConfigError(f"{path} is not drawn: {error}; mend it, or take it out") from error
        if np.ptp(pixels, axis=(0, 1)).max() < 0.02:
            raise ConfigError(f"{path} is a sheet of a single colour; take it out")
        found[hashlib.blake2b(markup.encode()).hexdigest()] = markup
    if len(found) < 3:
        raise ConfigError(
            f"files is {folder!r}, which has {len(found)} different drawings in {len(paths)} .svg "
            "files; give at least three, one for each split"
        )
    dealt = [found[digest] for digest in sorted(found)]
    tenth = max(1, len(dealt) // 10)
    return {
        "validation": tuple(dealt[:tenth]),
        "test": tuple(dealt[tenth : 2 * tenth]),
        "train": tuple(dealt[2 * tenth :]),
    }
