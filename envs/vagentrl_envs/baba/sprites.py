"""Pictures of Baba Is AI levels, drawn from formulas so that they are crisp at any size."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vagentrl_envs.baba.game import IS, KINDS, NOUNS, WORDS, Room, State, bits
from vagentrl_envs.sprites import Color, Sprite

_FLOOR, _FLOOR_EDGE, _BORDER = (28, 30, 40), (40, 43, 56), (92, 96, 112)
_BLOCK = (238, 236, 226)
_INK = ((52, 56, 68), (196, 46, 116), (24, 112, 72))  # noun, IS, property
_BABA, _EYE = (246, 244, 236), (40, 36, 48)
_WALL, _MORTAR = (118, 92, 84), (80, 60, 56)
_BALL, _KEY, _DOOR, _KNOB = (74, 190, 96), (92, 148, 246), (214, 72, 66), (250, 214, 110)

ORDER = (*range(1, len(NOUNS)), 0, *range(len(NOUNS), KINDS))
"""Kinds from the lowest to the topmost, where several are in one cell."""


def render(room: Room, state: State, cell: int) -> Image.Image:
    """Draw a level, `cell` pixels to a cell, with the things of a cell on top of each other."""
    floor, border, sprites = atlas(cell)
    pixels = np.empty((room.rows, room.columns, cell, cell, 3), dtype=np.uint8)
    pixels[:] = border
    for number in bits(room.inside):
        pixels[divmod(number, room.columns)] = floor
    for kind in ORDER:
        color, mask = sprites[kind]
        for number in bits(state[kind]):
            place = divmod(number, room.columns)
            pixels[place] = np.where(mask[..., None], color, pixels[place])
    shape = (room.rows * cell, room.columns * cell, 3)
    return Image.fromarray(pixels.transpose(0, 2, 1, 3, 4).reshape(shape))


@lru_cache(maxsize=8)
def atlas(cell: int) -> tuple[np.ndarray, np.ndarray, tuple[tuple[np.ndarray, np.ndarray], ...]]:
    """Return floor, border, and for each kind the `(cell, cell, 3)` colors and where they show."""
    floor, border = _Sprite(cell, _FLOOR), _Sprite(cell, _BORDER)
    floor.paint(np.maximum(floor.x, floor.y) > 1 - 1 / cell, _FLOOR_EDGE)
    paints = (_Sprite.baba, _Sprite.wall, _Sprite.ball, _Sprite.key, _Sprite.door)
    objects = []
    for paint in paints:
        sprite = _Sprite(cell, _FLOOR)
        paint(sprite)
        objects.append((sprite.pixels(), sprite.shown(cell)))
    texts = [(_text(kind, cell), _text_mask(cell)) for kind in range(len(NOUNS), KINDS)]
    return floor.pixels(), border.pixels(), (*objects, *texts)


class _Sprite(Sprite):
    """A canvas whose methods paint objects and remember where."""

    def __init__(self, cell: int, color: Color) -> None:
        super().__init__(cell, color)
        self._shown = np.zeros_like(self.x, dtype=bool)

    def draw(self, where: np.ndarray, color: Color) -> None:
        self.paint(where, color)
        self._shown |= where

    def shown(self, cell: int) -> np.ndarray:
        """`(cell, cell)`: whether at least half of a pixel is painted."""
        size = len(self._shown) // cell
        return self._shown.reshape(cell, size, cell, size).mean((1, 3)) >= 0.5

    def baba(self) -> None:
        """A white animal from the side, with two ears."""
        body = ((self.x - 0.46) / 0.36) ** 2 + ((self.y - 0.58) / 0.25) ** 2 < 1
        head = self.distance(0.72, 0.42) < 0.2
        ears = (abs(self.x - 0.64) < 0.05) | (abs(self.x - 0.8) < 0.05)
        legs = (abs(self.x - 0.26) < 0.06) | (abs(self.x - 0.62) < 0.06)
        self.draw(body | head | (ears & (abs(self.y - 0.22) < 0.12)), _BABA)
        self.draw(legs & (abs(self.y - 0.84) < 0.1), _BABA)
        self.draw(self.distance(0.78, 0.4) < 0.05, _EYE)

    def wall(self) -> None:
        """Two courses of bricks."""
        inside = np.maximum(abs(self.x - 0.5), abs(self.y - 0.5)) < 0.46
        joint = np.where(self.y < 0.5, self.x, (self.x + 0.5) % 1)
        self.draw(inside, _WALL)
        self.draw(inside & ((abs(self.y - 0.5) < 0.04) | (abs(joint - 0.5) < 0.04)), _MORTAR)

    def ball(self) -> None:
        self.draw(self.distance(0.5, 0.5) < 0.34, _BALL)

    def key(self) -> None:
        """A ring, a shaft and two teeth."""
        ring = abs(self.distance(0.3, 0.5) - 0.14) < 0.06
        shaft = (abs(self.y - 0.5) < 0.06) & (self.x > 0.46) & (self.x < 0.9)
        teeth = (abs(self.x - 0.68) < 0.05) | (abs(self.x - 0.84) < 0.05)
        self.draw(ring | shaft | (teeth & (self.y > 0.5) & (self.y < 0.74)), _KEY)

    def door(self) -> None:
        """A leaf with a knob."""
        self.draw((abs(self.x - 0.5) < 0.3) & (abs(self.y - 0.5) < 0.44), _DOOR)
        self.draw(self.distance(0.68, 0.52) < 0.06, _KNOB)


def _text(kind: int, cell: int) -> np.ndarray:
    """Return a block with a word on it, three letters at most where it is small."""
    word = WORDS[kind].upper()
    ink = _INK[0] if kind < IS else _INK[1] if kind == IS else _INK[2]
    scale = max(1, 96 // cell)
    image = Image.new("RGB", (cell * scale, cell * scale), _BLOCK)
    lines = [word[:2], word[2:4]] if len(word) == 4 else [word[:3], word[3:]]
    if len(word) <= 3:
        lines = [word]
    font = ImageFont.load_default(size=cell * scale * (0.44 if len(lines) == 2 else 0.4))
    ImageDraw.Draw(image).multiline_text(
        (cell * scale / 2, cell * scale / 2), "\n".join(lines), ink, font,
        anchor="mm", align="center", spacing=0,
    )  # fmt: skip
    return np.asarray(image.resize((cell, cell), Image.Resampling.LANCZOS))


def _text_mask(cell: int) -> np.ndarray:
    """Return all of a cell but a frame of a pixel or more, in which what is below shows."""
    frame = max(1, cell // 16)
    mask = np.zeros((cell, cell), dtype=bool)
    mask[frame:-frame, frame:-frame] = True
    return mask
