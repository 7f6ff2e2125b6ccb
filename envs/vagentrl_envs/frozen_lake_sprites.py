"""Pictures of a frozen lake, drawn from formulas so that they are crisp at any size."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from vagentrl_envs.sprites import Sprite, tiled

_ICE, _ICE_EDGE, _GLINT = (208, 232, 244), (166, 202, 222), (240, 249, 253)
_RIM, _WATER = (120, 168, 196), (18, 46, 84)
_POLE, _FLAG = (84, 60, 44), (214, 48, 49)
_COAT, _SKIN, _HAT = (36, 132, 72), (250, 208, 164), (246, 176, 32)


def render(codes: np.ndarray, cell: int) -> Image.Image:
    """The picture of a grid of `frozen_lake` codes, `cell` pixels to a cell."""
    return tiled(codes, atlas(cell))


@lru_cache(maxsize=8)
def atlas(cell: int) -> np.ndarray:
    """`(6, cell, cell, 3)` sprites, in the order of the codes."""
    sprites = (
        _Sprite(cell),
        _Sprite(cell).hole(),
        _Sprite(cell).flag(),
        _Sprite(cell).player(0.98),
        _Sprite(cell).hole().player(0.62),
        _Sprite(cell).flag().player(0.98),
    )
    return np.stack([sprite.pixels() for sprite in sprites])


class _Sprite(Sprite):
    """A tile of ice from (0, 0) at the top left to (1, 1); methods paint on it and return it."""

    def __init__(self, cell: int) -> None:
        super().__init__(cell, _ICE)
        glint = abs(self.x + self.y - 0.55) < max(0.5 / cell, 0.03)
        self.paint(glint & (abs(self.x - self.y) < 0.3), _GLINT)
        self.paint(np.maximum(self.x, self.y) > 1 - 1 / cell, _ICE_EDGE)

    def hole(self) -> _Sprite:
        """Dark water inside a broken rim."""
        far = self.distance(0.5, 0.5)
        angle = np.arctan2(self.y - 0.5, self.x - 0.5)
        self.paint(far < 0.43 + 0.03 * np.sin(7 * angle), _RIM)
        self.paint(far < 0.35, _WATER)
        return self

    def flag(self) -> _Sprite:
        """A pennant on a pole at the left, so that a player beside it leaves it in sight."""
        self.paint((abs(self.x - 0.14) < 0.05) & (abs(self.y - 0.5) < 0.44), _POLE)
        falling = abs(self.y - 0.24) < 0.2 * (0.95 - self.x) / 0.76
        self.paint((self.x > 0.19) & falling, _FLAG)
        return self

    def player(self, depth: float) -> _Sprite:
        """A figure from the front in coat and hat, cut off below `depth`."""
        body = ((self.x - 0.56) / 0.25) ** 2 + ((self.y - 0.96) / 0.42) ** 2 < 1
        self.paint(body & (self.y < min(depth, 0.92)), _COAT)
        head = self.distance(0.56, 0.42)
        self.paint(head < 0.18, _SKIN)
        self.paint((head < 0.2) & (self.y < 0.36), _HAT)
        return self
