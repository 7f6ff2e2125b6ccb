"""Pictures of a Sokoban room, drawn from formulas so that they are crisp at any size."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from vagentrl_envs.sprites import Color, Sprite, tiled

_FLOOR = (232, 226, 210)
_FLOOR_EDGE = (214, 206, 187)
_BRICK = (112, 84, 76)
_MORTAR = (70, 54, 52)
_TARGET = (214, 48, 49)
_WOOD, _FRAME = (203, 147, 72), (124, 76, 28)
_HOME, _HOME_FRAME = (98, 178, 92), (34, 100, 48)
_COAT, _SKIN, _HAIR = (38, 98, 196), (250, 208, 164), (44, 36, 48)


def render(codes: np.ndarray, cell: int) -> Image.Image:
    """The picture of a grid of `sokoban_rooms` codes, `cell` pixels to a cell."""
    return tiled(codes, atlas(cell))


@lru_cache(maxsize=8)
def atlas(cell: int) -> np.ndarray:
    """`(7, cell, cell, 3)` sprites, in the order of the codes."""
    target = _Sprite(cell, floor=True).target()
    sprites = (
        _Sprite(cell).wall(),
        _Sprite(cell, floor=True),
        target,
        _Sprite(cell, floor=True).box(_WOOD, _FRAME),
        _Sprite(cell, floor=True).box(_HOME, _HOME_FRAME),
        _Sprite(cell, floor=True).player(),
        _Sprite(cell, floor=True).target().player(),
    )
    return np.stack([sprite.pixels() for sprite in sprites])


class _Sprite(Sprite):
    """A canvas from (0, 0) at the top left to (1, 1); each method paints and returns itself."""

    def __init__(self, cell: int, floor: bool = False) -> None:
        super().__init__(cell, _FLOOR)
        self.line = max(1 / cell, 0.06)  # no line is thinner than a pixel
        if floor:
            self.paint(np.maximum(self.x, self.y) > 1 - 1 / cell, _FLOOR_EDGE)

    def wall(self) -> _Sprite:
        """Two courses of bricks, the lower one shifted by half a brick."""
        self.paint(self.x >= 0, _BRICK)
        joint = self.line
        shifted = np.where(self.y < 0.5, self.x, (self.x + 0.5) % 1)
        self.paint((self.y % 0.5 < joint) | (shifted < joint), _MORTAR)
        return self

    def target(self) -> _Sprite:
        """A ring around a dot."""
        far = self.distance(0.5, 0.5)
        self.paint((abs(far - 0.32) < self.line) | (far < 0.12), _TARGET)
        return self

    def box(self, wood: Color, frame: Color) -> _Sprite:
        """A crate: a frame and two crossed boards."""
        edge = np.maximum(abs(self.x - 0.5), abs(self.y - 0.5))
        self.paint(edge < 0.43, frame)
        self.paint(edge < 0.43 - 1.4 * self.line, wood)
        crossed = np.minimum(abs(self.x - self.y), abs(self.x + self.y - 1))
        self.paint((edge < 0.43) & (crossed < 0.9 * self.line), frame)
        return self

    def player(self) -> _Sprite:
        """A figure from the front: coat, head, hair."""
        body = ((self.x - 0.5) / 0.27) ** 2 + ((self.y - 0.98) / 0.44) ** 2 < 1
        self.paint(body & (self.y < 0.92), _COAT)
        head = self.distance(0.5, 0.36)
        self.paint(head < 0.21, _SKIN)
        self.paint((head < 0.22) & (self.y < 0.32), _HAIR)
        eyes = np.minimum(self.distance(0.42, 0.4), self.distance(0.58, 0.4))
        self.paint(eyes < 0.03, _HAIR)
        return self
