"""What is in sight: by geometry, so that it does not depend on who draws the picture.

A thing counts as a flat picture that turns towards the eye, as it is drawn. Six points of it are
looked at; a wall hides a point, and so does a nearer thing that rises above the line of sight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vagentrl_envs.navigation.house import EYE_HEIGHT, House
from vagentrl_envs.navigation.kinds import DOORWAY

_ACROSS = np.array((-0.35, 0.0, 0.35, -0.35, 0.0, 0.35))
"""Where the points of a thing are, in widths from its middle."""
_UP = np.array((0.3, 0.3, 0.3, 0.8, 0.8, 0.8))
"""Where they are, in heights from the floor."""
_ENOUGH = 2
"""How many of the points must be seen."""
_NEAREST = 0.2
"""Metres ahead of the eye at which the field of view begins."""


@dataclass(frozen=True)
class Camera:
    """The field of view.

    Attributes:
        fov: Degrees from the left to the right edge.
        shape: Width divided by height of the picture.
    """

    fov: float
    shape: float

    @cached_property
    def slope(self) -> float:
        """Metres to the side of the field's edge, one metre ahead."""
        return float(np.tan(np.radians(self.fov / 2)))


class Sight:
    """Tells what is in sight in a house.

    Args:
        house: The house.
        camera: The agent's field of view.
    """

    def __init__(self, house: House, camera: Camera) -> None:
        self._camera = camera
        self._centres = house.centres
        self._widths = np.array([thing.kind.width for thing in house.things])
        self._heights = np.array([thing.kind.height for thing in house.things])
        hiding = [thing.kind is not DOORWAY for thing in house.things]
        self._hiding = np.flatnonzero(hiding)
        walls = np.array(sorted({wall[:4] for wall in house.walls}))
        upright = walls[:, 0] == walls[:, 2]
        self._walls = (walls[upright][:, [0, 1, 3]], walls[~upright][:, [1, 0, 2]])

    def seen(self, eyes: np.ndarray, angles: np.ndarray, things: np.ndarray) -> np.ndarray:
        """Which things are in sight, `(P, A, T)`.

        Args:
            eyes: `(P, 2)`, metres east and north of the eye.
            angles: `(A,)`, degrees clockwise from the north in which the agent looks.
            things: `(T,)`, numbers of the things to look for.
        """
        points, heights = self._points(eyes, things)
        rays = points - eyes[:, None, None]
        clear = ~(self._behind_walls(eyes, rays) | self._behind_things(eyes, rays, heights, things))
        radians = np.radians(angles)[:, None]
        ahead = np.stack([np.sin(radians), np.cos(radians)])  # (2, A, 1)
        east, north = rays[:, None, ..., 0], rays[:, None, ..., 1]  # (P, 1, T, K)
        depth = east * ahead[0][..., None] + north * ahead[1][..., None]
        side = east * ahead[1][..., None] - north * ahead[0][..., None]
        up = heights - EYE_HEIGHT
        slope, shape = self._camera.slope, self._camera.shape
        framed = (depth > _NEAREST) & (abs(side) <= slope * depth)
        framed &= abs(up) * shape <= slope * depth
        return (framed & clear[:, None]).sum(-1) >= _ENOUGH

    def _points(self, eyes: np.ndarray, things: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The looked-at points `(P, T, K, 2)` and their heights `(T, K)`."""
        centres = self._centres[things]
        ray = centres - eyes[:, None]
        ray /= np.maximum(np.hypot(ray[..., 0], ray[..., 1]), 1e-9)[..., None]
        across = np.stack([ray[..., 1], -ray[..., 0]], -1)[:, :, None]  # to the right of the ray
        offsets = self._widths[things][:, None] * _ACROSS
        return (
            centres[:, None] + across * offsets[..., None],
            self._heights[things][:, None] * _UP,
        )

    def _behind_walls(self, eyes: np.ndarray, rays: np.ndarray) -> np.ndarray:
        hidden = np.zeros(rays.shape[:-1], bool)
        for axis, walls in enumerate(self._walls):
            start, span = eyes[:, None, None, None, axis], rays[..., None, axis]
            with np.errstate(divide="ignore", invalid="ignore"):
                share = (walls[:, 0] - start) / span
                other = eyes[:, None, None, None, 1 - axis] + share * rays[..., None, 1 - axis]
            crossed = (share > 0) & (share < 1 - 1e-6)
            crossed &= (other >= walls[:, 1]) & (other <= walls[:, 2])
            hidden |= crossed.any(-1)
        return hidden

    def _behind_things(
        self, eyes: np.ndarray, rays: np.ndarray, heights: np.ndarray, things: np.ndarray
    ) -> np.ndarray:
        length = np.maximum(np.hypot(rays[..., 0], rays[..., 1]), 1e-9)[..., None]
        way = rays / length
        others = self._centres[self._hiding] - eyes[:, None]  # (P, H, 2)
        east, north = others[:, None, None, :, 0], others[:, None, None, :, 1]
        along = east * way[..., None, 0] + north * way[..., None, 1]  # (P, T, K, H)
        aside = abs(east * way[..., None, 1] - north * way[..., None, 0])
        rise = (heights - EYE_HEIGHT)[None, :, :, None]
        line = EYE_HEIGHT + rise * along / length
        hides = (along > _NEAREST) & (along < length - 0.05)
        hides &= (aside < self._widths[self._hiding] / 2) & (line < self._heights[self._hiding])
        hides &= (self._hiding != things[:, None])[None, :, None]
        return hides.any(-1)
