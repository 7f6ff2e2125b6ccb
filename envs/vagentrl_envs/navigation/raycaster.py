"""A raycaster in numpy: textured walls and floor, and things as pictures that face the eye.

Everything that depends only on the size of the picture and the heading comes from tables, so that
a frame takes a few array operations per wall, column and thing. Arrays are `(columns, rows)`: a
column of the picture lies together in memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image

from vagentrl_envs.navigation.house import EYE_HEIGHT, WALL_HEIGHT, House
from vagentrl_envs.navigation.kinds import DOORWAY
from vagentrl_envs.navigation.textures import (
    CEILING,
    LEVELS,
    SHADE_METRES,
    SHADES,
    SPRITE,
    TEXELS,
    WALL_TEXELS,
    floor_atlas,
    packed,
    shaded,
    sprite_atlas,
    wall_atlas,
)

_NEAREST, _FURTHEST = 0.05, 60.0
"""Metres between which walls are told apart by their depth."""
_DEPTHS = 1024
"""Entries of the tables over depth, evenly spaced in its logarithm: each is 0.7 % further away."""
_PER_LOG = (_DEPTHS - 1) / float(np.log(_FURTHEST / _NEAREST))
_CEILING_SHADES = 16


class Rays(NamedTuple):
    """Tables of one heading.

    Attributes:
        ahead: East and north of a metre ahead.
        right: East and north of a metre to the right.
        way: `(2, columns)`, east and north of the ray of each column, one metre ahead in depth.
        floor: `(2, columns, rows below the horizon)`, texels east and north of the eye at which a
            pixel's ray meets the floor.
    """

    ahead: np.ndarray
    right: np.ndarray
    way: np.ndarray
    floor: np.ndarray


class Raycaster:
    """Draws houses as an agent sees them.

    Args:
        width: Columns of the picture.
        height: Rows of the picture.
        fov: Degrees from the left to the right edge.
    """

    def __init__(self, width: int, height: int, fov: float) -> None:
        self.width, self.height = width, height
        self._slope = float(np.tan(np.radians(fov / 2)))
        self._focal = width / 2 / self._slope  # pixels of a metre at a depth of one metre
        self._horizon = height // 2
        self._rays = lru_cache(maxsize=8)(self._make_rays)
        self._rows = self._wall_rows()
        self._below_wall = self._rows[:, self._horizon :] == WALL_TEXELS + _CEILING_SHADES
        self._walls = _walls_with_ceiling()
        self._floor_shade = self._floor_shades()
        self._house: House | None = None

    def picture(self, house: House, x: float, y: float, angle: float) -> Image.Image:
        """The picture at a place, looking `angle` degrees clockwise from the north."""
        columns = self.draw(house, x, y, angle)
        rows = np.ascontiguousarray(columns.T)
        size = (self.width, self.height)
        return Image.frombuffer("RGBX", size, rows, "raw", "RGBX", 0, 1).convert("RGB")

    def draw(self, house: House, x: float, y: float, angle: float) -> np.ndarray:
        """The picture as `(columns, rows)` packed colours."""
        if house is not self._house:
            self._set_up(house)
        rays = self._rays(angle % 360)
        depth, base = self._cast(rays, x, y)
        entry = np.log(np.clip(depth, _NEAREST, _FURTHEST) / _NEAREST) * _PER_LOG
        entry = np.rint(entry).astype(np.intp)
        index = self._rows[entry]
        index += base[:, None]
        self._lay_floor(index, entry, rays, x, y)
        pixels = self._atlas.take(index)
        self._put_things(pixels, depth, rays, x, y)
        return pixels

    # ------------------------------------------------------------------------------------- tables

    def _make_rays(self, angle: float) -> Rays:
        radians = np.radians(angle)
        ahead = np.array((np.sin(radians), np.cos(radians)))
        right = np.array((ahead[1], -ahead[0]))
        aside = ((np.arange(self.width) + 0.5) / self.width * 2 - 1) * self._slope
        way = ahead[:, None] + right[:, None] * aside
        way[abs(way) < 1e-9] = 1e-9
        below = np.arange(self._horizon, self.height) + 0.5 - self.height / 2
        depth = EYE_HEIGHT * self._focal / np.maximum(below, 0.5)
        floor = np.floor(way[:, :, None] * depth * TEXELS) % TEXELS
        return Rays(ahead, right, way, floor.astype(np.int32))

    def _wall_rows(self) -> np.ndarray:
        """`(depths, rows)`: which texel of the wall, or which shade of the ceiling, a pixel shows;
        the last number of all for the floor."""
        depth = np.geomspace(_NEAREST, _FURTHEST, _DEPTHS)
        rows = np.arange(self.height) + 0.5 - self.height / 2
        height = EYE_HEIGHT - rows * depth[:, None] / self._focal
        texel = np.floor(height * TEXELS).clip(0, WALL_TEXELS - 1)
        up = (-rows / (self.height / 2) * _CEILING_SHADES).clip(0, _CEILING_SHADES - 1)
        texel = np.where(height >= WALL_HEIGHT, WALL_TEXELS + np.floor(up), texel)
        return np.where(height < 0, WALL_TEXELS + _CEILING_SHADES, texel).astype(np.int32)

    def _floor_shades(self) -> np.ndarray:
        below = np.arange(self._horizon, self.height) + 0.5 - self.height / 2
        return _shade(EYE_HEIGHT * self._focal / np.maximum(below, 0.5)) * TEXELS**2

    def _set_up(self, house: House) -> None:
        """Arrange a house's walls and things for the frames to come."""
        self._house = house
        walls = np.array(house.walls)
        upright = walls[:, 0] == walls[:, 2]
        # Columns: where it stands, from, to, which side it faces, wallpaper.
        self._upright = walls[upright][:, [0, 1, 3, 4, 5]]
        self._level = walls[~upright][:, [1, 0, 2, 4, 5]]
        self._atlas = np.concatenate([self._walls, floor_atlas()[house.floor].ravel()])
        self._standing = [thing for thing in house.things if thing.kind is not DOORWAY]
        self._places = np.array([(thing.x, thing.y) for thing in self._standing])

    # ------------------------------------------------------------------------------- walls, floor

    def _cast(self, rays: Rays, x: float, y: float) -> tuple[np.ndarray, np.ndarray]:
        """The depth of the wall in each column, and where its texels begin in the atlas."""
        depths, offsets, papers = [], [], []
        for axis, walls, eye in ((0, self._upright, (x, y)), (1, self._level, (y, x))):
            walls = walls[(eye[0] - walls[:, 0]) * walls[:, 3] > 0]  # those that face the eye
            depth = (walls[:, 0] - eye[0])[:, None] / rays.way[axis]
            along = eye[1] + depth * rays.way[1 - axis]
            hit = (depth > 0) & (along >= walls[:, 1, None]) & (along <= walls[:, 2, None])
            depths.append(np.where(hit, depth, _FURTHEST))
            offsets.append(along)
            papers.append(walls[:, 4] * 2 + 1 - axis)
        depth, along = np.concatenate(depths), np.concatenate(offsets)
        nearest = depth.argmin(0)
        columns = np.arange(self.width)
        depth, along = depth[nearest, columns], along[nearest, columns]
        paper = np.concatenate(papers)[nearest].astype(np.int32)
        texel = (along * TEXELS).astype(np.int32) % TEXELS
        strip = (paper * SHADES + _shade(depth)) * TEXELS + texel
        return depth, strip * (WALL_TEXELS + _CEILING_SHADES)

    def _lay_floor(
        self, index: np.ndarray, entry: np.ndarray, rays: Rays, x: float, y: float
    ) -> None:
        """Write where the floor's texels are in the atlas over what lies below the walls."""
        is_floor = self._below_wall[entry]
        east = rays.floor[0] + int(x * TEXELS)
        north = rays.floor[1] + int(y * TEXELS)
        east &= TEXELS - 1
        north &= TEXELS - 1
        north *= TEXELS
        north += east
        north += self._floor_shade + len(self._walls)
        np.copyto(index[:, self._horizon :], north, where=is_floor)

    # ------------------------------------------------------------------------------------- things

    def _put_things(
        self, pixels: np.ndarray, depth: np.ndarray, rays: Rays, x: float, y: float
    ) -> None:
        """Paint the things over the picture, the furthest first."""
        offsets = self._places - (x, y)
        ahead, aside = offsets @ rays.ahead, offsets @ rays.right
        for number in np.argsort(-ahead):
            near = float(ahead[number])
            kind = self._standing[number].kind
            if near < 0.15 or abs(aside[number]) > near * self._slope + kind.width / 2:
                continue
            scale = self._focal / near
            wide, high = kind.width * scale, kind.height * scale
            left = self.width / 2 + float(aside[number]) * scale - wide / 2
            top = self.height / 2 + (EYE_HEIGHT - kind.height) * scale
            first, last = max(0, round(left)), min(self.width, round(left + wide))
            upper, lower = max(0, round(top)), min(self.height, round(top + high))
            if first >= last or upper >= lower:
                continue
            level = min(LEVELS - 1, max(0, int(np.log2(max(1.0, SPRITE / max(wide, high, 1))))))
            picture = sprite_atlas()[kind.name][level][int(_shade(np.array(near)))]
            side = len(picture)
            across = ((np.arange(first, last) + 0.5 - left) * (side / wide)).astype(np.intp)
            down = ((np.arange(upper, lower) + 0.5 - top) * (side / high)).astype(np.intp)
            np.clip(across, 0, side - 1, out=across)
            np.clip(down, 0, side - 1, out=down)
            texels = picture[across].take(down, axis=1)
            texels *= (depth[first:last] > near)[:, None]
            np.copyto(pixels[first:last, upper:lower], texels, where=texels != 0)


def _shade(depth: np.ndarray) -> np.ndarray:
    """The step of brightness at a depth."""
    return np.minimum(depth / SHADE_METRES, SHADES - 1).astype(np.int32)


@lru_cache(maxsize=1)
def _walls_with_ceiling() -> np.ndarray:
    """All strips of wall, one after the other, each with the shades of the ceiling at its end."""
    strips = wall_atlas().reshape(-1, WALL_TEXELS)
    fade = np.linspace(0.72, 1, _CEILING_SHADES)[:, None] * np.array(CEILING, float)
    ceiling = packed(shaded(fade)[0])
    return np.concatenate([strips, np.tile(ceiling, (len(strips), 1))], 1).ravel()
