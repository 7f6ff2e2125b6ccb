"""Poses of the agent, what its actions do to them, and the shortest way to a goal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vagentrl_envs.navigation.house import House, Point

ACTIONS = ("moveahead", "moveback", "moveleft", "moveright", "rotateleft", "rotateright")

TURNS = {"rotateleft": -1, "rotateright": 1}
"""Headings by which an action turns clockwise."""
_SIDES = {"moveahead": 0, "moveright": 1, "moveback": 2, "moveleft": 3}
"""Quarter turns clockwise from the heading to the way that an action goes."""

_WAYS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
"""Rows and columns of a step to the north, north-east and so on, clockwise."""

FAR = 10_000
"""The distance of poses from which no way leads to the goal."""


class Pose(NamedTuple):
    """Where the agent stands and looks.

    Attributes:
        point: Row and column on the lattice.
        heading: Turns clockwise from the north.
    """

    point: Point
    heading: int


class Ways:
    """The poses of a house and the steps between them.

    Args:
        house: The house.
        turn_angle: Degrees of a turn, 45 or 90.
        actions: The actions that there are.
    """

    def __init__(self, house: House, turn_angle: int, actions: Sequence[str] = ACTIONS) -> None:
        self.actions = tuple(actions)
        self.headings = 360 // turn_angle
        self._eighths = turn_angle // 45
        self._steps = [_steps(house, way) for way in _WAYS]

    def act(self, pose: Pose, action: str) -> Pose:
        """The pose after an action; the same one if the way is blocked."""
        (row, column), heading = pose
        if action in TURNS:
            return Pose(pose.point, (heading + TURNS[action]) % self.headings)
        way = self._way(heading, action)
        if not self._steps[way][row, column]:
            return pose
        return Pose((row + _WAYS[way][0], column + _WAYS[way][1]), heading)

    def _way(self, heading: int, action: str) -> int:
        """Which of the eight ways a move goes."""
        return (heading * self._eighths + 2 * _SIDES[action]) % 8

    def clear_steps(self, pose: Pose, action: str) -> int:
        """How often a move can be repeated before the way is blocked."""
        steps = 0
        while (after := self.act(pose, action)) != pose:
            pose, steps = after, steps + 1
        return steps

    def distances(self, goals: np.ndarray) -> np.ndarray:
        """Fewest actions from each pose to a goal, `(headings, rows, columns)`; `FAR` where there
        is no way.

        Args:
            goals: The poses that are goals, of the same shape.
        """
        distances = np.where(goals, 0, FAR)
        frontier, count = goals, 0
        while frontier.any():
            count += 1
            frontier = self._before(frontier) & (distances == FAR)
            distances[frontier] = count
        return distances

    def _before(self, after: np.ndarray) -> np.ndarray:
        """The poses from which one action leads into a set of poses."""
        before = np.zeros_like(after)
        for action in self.actions:
            if action in TURNS:
                before |= np.roll(after, -TURNS[action], axis=0)
                continue
            for heading in range(self.headings):
                way = self._way(heading, action)
                before[heading] |= _shifted(after[heading], *_WAYS[way]) & self._steps[way]
        return before

    def plan(self, pose: Pose, distances: np.ndarray) -> tuple[str, ...] | None:
        """A shortest way to a goal; None if there is none."""
        if self._far(pose, distances) == FAR:
            return None
        plan: list[str] = []
        while (left := self._far(pose, distances)) > 0:
            for action in self.actions:
                after = self.act(pose, action)
                if self._far(after, distances) < left:
                    plan.append(action)
                    pose = after
                    break
        return tuple(plan)

    def _far(self, pose: Pose, distances: np.ndarray) -> int:
        return int(distances[pose.heading, pose.point[0], pose.point[1]])


def _steps(house: House, way: tuple[int, int]) -> np.ndarray:
    """`(rows, columns)`: the points from which a step is free. A step across the lattice needs both
    ways around its corner."""
    up, right = way
    if not (up and right):
        return _straight(house, up, right)
    first_up = _straight(house, up, 0) & _shifted(_straight(house, 0, right), up, 0)
    first_right = _straight(house, 0, right) & _shifted(_straight(house, up, 0), 0, right)
    return first_up & first_right


def _straight(house: House, up: int, right: int) -> np.ndarray:
    is_open = house.open_north if up else house.open_east
    if up + right < 0:  # from the other side
        is_open = _shifted(is_open, up, right)
    return is_open & house.free & _shifted(house.free, up, right)


def _shifted(flags: np.ndarray, up: int, right: int) -> np.ndarray:
    """For each point the flag of the point one step further; False outside."""
    rows, columns = flags.shape
    padded = np.zeros((rows + 2, columns + 2), bool)
    padded[1:-1, 1:-1] = flags
    return padded[1 + up : 1 + up + rows, 1 + right : 1 + right + columns]
