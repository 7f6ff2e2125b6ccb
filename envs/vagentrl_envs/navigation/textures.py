"""Wallpapers, floors and the pictures of things, drawn from formulas.

Colours are packed as ``0xAABBGGRR`` (the bytes R, G, B, A in memory), so that a pixel is one
number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from vagentrl_envs.navigation.house import FLOORS, WALL_HEIGHT, WALLPAPERS
from vagentrl_envs.navigation.kinds import KINDS, Kind

TEXELS = 32
"""Texels of a metre of wall or floor; both repeat after a metre."""
WALL_TEXELS = round(WALL_HEIGHT * TEXELS)
SHADES = 8
"""Steps of brightness: what is further away is darker."""
SHADE_METRES = 1.5
"""Metres after which the next darker step is used."""
_DARKEST = 0.55
SPRITE = 64
"""Texels on a side of the picture of a thing."""
LEVELS = 4
"""Sizes of the picture of a thing, each half of the one before: small ones do not flicker."""

Color = tuple[int, int, int]
CEILING: Color = (232, 230, 222)

_PAPERS: tuple[tuple[Color, Color], ...] = (
    ((214, 196, 160), (196, 172, 128)),  # beige stripes
    ((150, 178, 200), (128, 156, 182)),  # blue bricks
    ((196, 154, 148), (172, 126, 122)),  # rose checks
    ((160, 190, 150), (134, 166, 124)),  # green boards
    ((190, 176, 204), (168, 150, 186)),  # violet stripes
    ((206, 206, 200), (176, 178, 176)),  # grey bricks
)
_FLOORS: tuple[tuple[Color, Color], ...] = (
    ((150, 110, 70), (128, 92, 56)),  # planks
    ((168, 164, 156), (138, 134, 128)),  # tiles
    ((112, 100, 116), (100, 88, 106)),  # carpet
)


def packed(colors: np.ndarray) -> np.ndarray:
    """`(..., 4)` bytes as one number each."""
    return np.ascontiguousarray(colors, np.uint8).view("<u4")[..., 0]


def shaded(colors: np.ndarray) -> np.ndarray:
    """`(..., 3)` colours as `(SHADES, ..., 4)` opaque ones, from bright to dark."""
    steps = np.linspace(1, _DARKEST, SHADES).reshape(-1, *[1] * colors.ndim)
    rgb = (colors * steps).round()
    return np.concatenate([rgb, np.full((*rgb.shape[:-1], 1), 255.0)], -1)


@lru_cache(maxsize=1)
def wall_atlas() -> np.ndarray:
    """`(WALLPAPERS, 2, SHADES, TEXELS, WALL_TEXELS)` colours: walls that face east or west are a
    little darker than the others; the last axis goes up from the floor."""
    across, up = np.meshgrid(np.arange(TEXELS), np.arange(WALL_TEXELS), indexing="ij")
    atlas = []
    for number, (light, dark) in enumerate(_PAPERS[:WALLPAPERS]):
        pattern = _WALL_PATTERNS[number % len(_WALL_PATTERNS)](across, up)
        colors = np.where(pattern[..., None], np.array(dark), np.array(light)).astype(float)
        colors[:, :4] = (96, 72, 52)  # a skirting board
        colors[:, -3:] *= 0.9
        atlas.append([packed(shaded(colors)), packed(shaded(colors * 0.86))])
    return np.array(atlas)


_WALL_PATTERNS: tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], ...] = (
    lambda across, up: across // 8 % 2 == 0,
    lambda across, up: (up % 8 == 0) | ((across + up // 8 % 2 * 8) % 16 == 0),
    lambda across, up: (across // 8 + up // 8) % 2 == 0,
    lambda across, up: across % 8 == 0,
    lambda across, up: across % 16 < 4,
    lambda across, up: (up % 16 == 0) | ((across + up // 16 % 2 * 16) % 32 == 0),
)


@lru_cache(maxsize=1)
def floor_atlas() -> np.ndarray:
    """`(FLOORS, SHADES, TEXELS * TEXELS)` colours, north before east."""
    north, east = np.indices((TEXELS, TEXELS))
    patterns = (
        (east % 8 == 0) | ((north + east // 8 % 2 * 16) % 32 == 0),
        (east % 16 == 0) | (north % 16 == 0),
        (north * 7 + east * 13) % 5 == 0,
    )
    atlas = []
    for (light, dark), pattern in zip(_FLOORS[:FLOORS], patterns, strict=True):
        colors = np.where(pattern[..., None], np.array(dark), np.array(light)).astype(float)
        atlas.append(packed(shaded(colors)).reshape(SHADES, -1))
    return np.array(atlas)


@lru_cache(maxsize=1)
def sprite_atlas() -> dict[str, list[np.ndarray]]:
    """For each kind of thing its picture at each level: `(SHADES, side, side)` colours, from left
    to right and from top to bottom; 0 where nothing is."""
    return {kind.name: _levels(kind) for kind in KINDS if kind.name in _DRAWINGS}


def _levels(kind: Kind) -> list[np.ndarray]:
    canvas = Canvas()
    _DRAWINGS[kind.name](canvas)
    colors, alpha = canvas.colors, canvas.alpha
    levels = []
    for _ in range(LEVELS):
        rgba = shaded(colors)
        rgba[..., 3] = 255
        levels.append(np.where(alpha >= 0.5, packed(rgba), np.uint32(0)))
        weight = _halved(alpha[..., None])
        colors = _halved(colors * alpha[..., None]) / np.maximum(weight, 1e-9)
        alpha = weight[..., 0]
    return levels


def _halved(values: np.ndarray) -> np.ndarray:
    side = len(values) // 2
    return values.reshape(side, 2, side, 2, -1).mean((1, 3))


class Canvas:
    """A transparent picture from (0, 0) at the top left to (1, 1); drawings paint on it."""

    def __init__(self) -> None:
        line = (np.arange(SPRITE) + 0.5) / SPRITE
        self.x, self.y = np.meshgrid(line, line, indexing="ij")
        self.colors = np.zeros((SPRITE, SPRITE, 3))
        self.alpha = np.zeros((SPRITE, SPRITE))

    def paint(self, where: np.ndarray, color: Color) -> None:
        """Colour the points of a mask."""
        self.colors[where] = color
        self.alpha[where] = 1

    def box(self, left: float, top: float, right: float, bottom: float, color: Color) -> None:
        """Paint a rectangle."""
        inside = (self.x >= left) & (self.x < right) & (self.y >= top) & (self.y < bottom)
        self.paint(inside, color)

    def disc(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """Paint an ellipse around a point."""
        inside = ((self.x - x) / width) ** 2 + ((self.y - y) / height) ** 2 <= 0.25
        self.paint(inside, color)

    def wedge(self, top: float, bottom: float, narrow: float, wide: float, color: Color) -> None:
        """Paint a trapezium around the middle, `narrow` at its top and `wide` at its bottom."""
        share = np.clip((self.y - top) / (bottom - top), 0, 1)
        half = (narrow + (wide - narrow) * share) / 2
        self.paint((abs(self.x - 0.5) <= half) & (self.y >= top) & (self.y < bottom), color)


_WOOD: Color = (120, 76, 36)
_DARK_WOOD: Color = (84, 50, 24)


def _table(canvas: Canvas) -> None:
    canvas.box(0.06, 0.1, 0.16, 1, _DARK_WOOD)
    canvas.box(0.84, 0.1, 0.94, 1, _DARK_WOOD)
    canvas.box(0, 0, 1, 0.2, _WOOD)


def _chair(canvas: Canvas) -> None:
    canvas.box(0.12, 0, 0.88, 0.42, (176, 120, 60))
    canvas.box(0.12, 0.5, 0.24, 1, _WOOD)
    canvas.box(0.76, 0.5, 0.88, 1, _WOOD)
    canvas.box(0.08, 0.45, 0.92, 0.6, (146, 96, 48))


def _sofa(canvas: Canvas) -> None:
    canvas.box(0.08, 0, 0.92, 0.7, (60, 84, 132))
    canvas.box(0.12, 0.45, 0.88, 0.75, (84, 110, 160))
    canvas.box(0, 0.25, 0.14, 0.95, (44, 64, 106))
    canvas.box(0.86, 0.25, 1, 0.95, (44, 64, 106))
    canvas.box(0.14, 0.75, 0.86, 0.95, (50, 72, 118))


def _bed(canvas: Canvas) -> None:
    canvas.box(0, 0.1, 0.08, 1, _DARK_WOOD)
    canvas.box(0.92, 0.4, 1, 1, _DARK_WOOD)
    canvas.box(0.08, 0.4, 0.92, 0.8, (236, 236, 240))
    canvas.box(0.1, 0.25, 0.32, 0.45, (214, 224, 240))
    canvas.box(0.08, 0.7, 0.92, 0.85, _WOOD)


def _shelf(canvas: Canvas) -> None:
    canvas.box(0, 0, 1, 1, _DARK_WOOD)
    books: tuple[Color, ...] = ((150, 60, 50), (70, 110, 80), (60, 80, 130), (190, 160, 80))
    for row in range(4):
        canvas.box(0.06, 0.04 + row * 0.24, 0.94, 0.23 + row * 0.24, (58, 36, 20))
        for book in range(7):
            left = 0.08 + book * 0.12
            color = books[(row + book) % len(books)]
            canvas.box(left, 0.08 + row * 0.24, left + 0.09, 0.23 + row * 0.24, color)


def _fridge(canvas: Canvas) -> None:
    canvas.box(0, 0, 1, 0.97, (222, 226, 230))
    canvas.box(0, 0.32, 1, 0.34, (150, 156, 162))
    canvas.box(0.84, 0.12, 0.9, 0.28, (110, 116, 122))
    canvas.box(0.84, 0.4, 0.9, 0.62, (110, 116, 122))


def _ball(canvas: Canvas) -> None:
    canvas.disc(0.5, 0.5, 1, 1, (212, 34, 34))
    canvas.disc(0.36, 0.32, 0.24, 0.24, (246, 120, 110))


def _lamp(canvas: Canvas) -> None:
    canvas.box(0.46, 0.3, 0.54, 0.95, (70, 70, 74))
    canvas.box(0.25, 0.94, 0.75, 1, (60, 60, 64))
    canvas.wedge(0, 0.36, 0.5, 0.96, (255, 214, 40))


def _plant(canvas: Canvas) -> None:
    for x, y in ((0.5, 0.2), (0.26, 0.36), (0.74, 0.36), (0.4, 0.5), (0.62, 0.5)):
        canvas.disc(x, y, 0.46, 0.4, (34, 140, 44))
    canvas.disc(0.5, 0.36, 0.2, 0.3, (70, 180, 70))
    canvas.box(0.28, 0.68, 0.72, 1, (184, 88, 44))


def _vase(canvas: Canvas) -> None:
    canvas.disc(0.5, 0.66, 0.9, 0.68, (28, 60, 200))
    canvas.box(0.34, 0.08, 0.66, 0.4, (28, 60, 200))
    canvas.box(0.24, 0, 0.76, 0.1, (90, 130, 240))
    canvas.box(0.1, 0.6, 0.9, 0.7, (230, 236, 250))


def _television(canvas: Canvas) -> None:
    canvas.box(0, 0, 1, 0.66, (20, 20, 24))
    canvas.box(0.06, 0.06, 0.94, 0.58, (64, 208, 216))
    canvas.box(0.2, 0.66, 0.8, 1, (50, 50, 54))


def _clock(canvas: Canvas) -> None:
    canvas.box(0.1, 0, 0.9, 1, (110, 52, 28))
    canvas.disc(0.5, 0.2, 0.66, 0.24, (250, 246, 230))
    canvas.box(0.47, 0.12, 0.53, 0.2, (20, 20, 20))
    canvas.box(0.5, 0.19, 0.68, 0.22, (20, 20, 20))
    canvas.box(0.3, 0.4, 0.7, 0.9, (70, 30, 16))
    canvas.disc(0.5, 0.74, 0.26, 0.1, (230, 190, 60))


def _guitar(canvas: Canvas) -> None:
    canvas.box(0.44, 0, 0.56, 0.6, (60, 34, 20))
    canvas.disc(0.5, 0.58, 0.62, 0.3, (255, 128, 16))
    canvas.disc(0.5, 0.82, 0.94, 0.38, (255, 128, 16))
    canvas.disc(0.5, 0.68, 0.26, 0.14, (50, 24, 10))


def _suitcase(canvas: Canvas) -> None:
    canvas.box(0.34, 0, 0.66, 0.16, (60, 20, 60))
    canvas.box(0.42, 0.06, 0.58, 0.16, (0, 0, 0))
    canvas.box(0, 0.14, 1, 0.97, (190, 40, 180))
    canvas.box(0, 0.5, 1, 0.56, (110, 16, 104))
    canvas.box(0.44, 0.46, 0.56, 0.62, (240, 220, 120))


_DRAWINGS: dict[str, Callable[[Canvas], None]] = {
    "table": _table,
    "chair": _chair,
    "sofa": _sofa,
    "bed": _bed,
    "shelf": _shelf,
    "fridge": _fridge,
    "ball": _ball,
    "lamp": _lamp,
    "plant": _plant,
    "vase": _vase,
    "television": _television,
    "clock": _clock,
    "guitar": _guitar,
    "suitcase": _suitcase,
}
