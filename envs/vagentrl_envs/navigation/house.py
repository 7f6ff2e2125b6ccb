"""Houses: rooms with doors, the things in them, and where an agent can go.

Positions are metres east (x) and north (y) of the south-west corner. The agent stands on the
points of a lattice; row and column number them from that corner, and row `r` is at
``y = (r + 0.5) * step``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from vagentrl.errors import ConfigError
from vagentrl_envs.navigation.kinds import DOORWAY, FURNITURE, OBJECTS, Kind

EYE_HEIGHT = 1.1
"""Metres of the agent's eye above the floor."""
WALL_HEIGHT = 2.5
"""Metres from the floor to the ceiling."""
WALLPAPERS = 6
"""Wallpapers that there are; each room has one."""
FLOORS = 3
"""Floors that there are; each house has one."""

_BODY = 0.2
"""Radius of the agent in metres."""
_FOOTPRINT = 0.25
"""Radius in metres of what a thing takes of the floor."""
_SPACING = 1.0
"""Fewest metres between two things, and between a thing and the middle of a doorway."""

Point = tuple[int, int]
"""Row and column on the lattice."""


class Thing(NamedTuple):
    """A thing in a house, or a doorway."""

    kind: Kind
    x: float
    y: float


class Wall(NamedTuple):
    """One side of a straight wall between two corners, seen from the side that it faces.

    Attributes:
        x0, y0, x1, y1: The corners; x0 <= x1 and y0 <= y1, and one of the two is equal.
        faces: 1 if it is seen from the east or north, -1 from the west or south.
        paper: Number of its wallpaper.
    """

    x0: float
    y0: float
    x1: float
    y1: float
    faces: int
    paper: int


@dataclass(frozen=True)
class Plan:
    """How houses are drawn.

    Attributes:
        rooms: Number of rooms.
        room_size: Metres from wall to opposite wall of a room.
        step: Metres between neighbouring points of the lattice.
        furniture: Pieces of furniture in the house.
        objects: Objects in the house; the agent looks for one of them.
        targets: Names of the objects that may be looked for.
    """

    rooms: int
    room_size: float
    step: float
    furniture: int
    objects: int
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.rooms <= 9:
            raise ConfigError(f"rooms is {self.rooms}; give 1 to 9")
        if not 0.2 <= self.step <= 1:
            raise ConfigError(f"step is {self.step} metres; give 0.2 to 1")
        if not 3 <= self.room_size <= 12 or abs(self._across() - self.points) > 1e-6:
            raise ConfigError(
                f"room_size is {self.room_size} and step {self.step}; give a room_size of 3 to 12 "
                "metres that is a multiple of step"
            )
        known = [kind.name for kind in OBJECTS]
        if not self.targets or not set(self.targets) <= set(known):
            raise ConfigError(f"targets is {list(self.targets)}; give some of {', '.join(known)}")
        if not 1 <= self.objects <= len(OBJECTS):
            raise ConfigError(f"objects is {self.objects}; give 1 to {len(OBJECTS)}")
        most = self.rooms * int(self.room_size**2 / 3)
        if self.furniture < 0 or self.furniture + self.objects > most:
            raise ConfigError(
                f"furniture is {self.furniture} and objects {self.objects}, but rooms {self.rooms} "
                f"of room_size {self.room_size} hold 0 to {most} things; give fewer things or "
                "larger rooms"
            )

    @property
    def points(self) -> int:
        """Points of the lattice on a side of a room."""
        return round(self._across())

    def _across(self) -> float:
        return self.room_size / self.step

    def draw(self, rng: np.random.Generator) -> House | None:
        """Draw a house; None if its things stand in the way or do not fit."""
        across = int(np.ceil(np.sqrt(self.rooms)))
        rooms = [divmod(room, across) for room in range(self.rooms)]
        gaps = dict(self._doors(rooms, rng))
        papers = rng.permutation(max(WALLPAPERS, self.rooms)) % WALLPAPERS
        doorways = [self._middle(*between, gap) for between, gap in gaps.items()]
        things = self._place(rooms, doorways, rng)
        if things is None:
            return None
        house = House(
            step=self.step,
            room_points=self.points,
            rooms=tuple(rooms),
            gaps=tuple((one, other, gap) for (one, other), gap in gaps.items()),
            things=(*things, *doorways),
            papers=tuple(int(papers[index]) for index in range(self.rooms)),
            floor=int(rng.integers(FLOORS)),
        )
        return house if house.is_connected() else None

    @property
    def gap_points(self) -> int:
        """Points of the lattice that lie in a doorway."""
        return max(1, round(DOORWAY.width / self.step))

    def _doors(
        self, rooms: list[Point], rng: np.random.Generator
    ) -> Iterator[tuple[tuple[Point, Point], int]]:
        """Pairs of neighbouring rooms with the first point of the doorway between them: a random
        tree that leads to all rooms."""
        inside = {rooms[int(rng.integers(len(rooms)))]}
        while len(inside) < len(rooms):
            borders = [
                (one, other)
                for one in rooms
                for other in ((one[0] + 1, one[1]), (one[0], one[1] + 1))
                if other in rooms and (one in inside) != (other in inside)
            ]
            one, other = borders[int(rng.integers(len(borders)))]
            inside |= {one, other}
            yield (one, other), int(rng.integers(self.points - self.gap_points + 1))

    def _middle(self, one: Point, other: Point, gap: int) -> Thing:
        """The doorway between two rooms, as a thing in its middle."""
        along = (gap + self.gap_points / 2) * self.step
        y, x = other[0] * self.room_size, other[1] * self.room_size
        return Thing(DOORWAY, x + along, y) if other[0] > one[0] else Thing(DOORWAY, x, y + along)

    def _place(
        self, rooms: list[Point], doorways: list[Thing], rng: np.random.Generator
    ) -> list[Thing] | None:
        """The object that is looked for, the other objects, and furniture at the walls; None if
        they do not fit."""
        furniture = [FURNITURE[int(i)] for i in rng.integers(len(FURNITURE), size=self.furniture)]
        wanted = [kind for kind in OBJECTS if kind.name in self.targets]
        target = wanted[int(rng.integers(len(wanted)))]
        others = [kind for kind in OBJECTS if kind is not target]
        distractors = [others[int(i)] for i in rng.permutation(len(others))[: self.objects - 1]]
        things: list[Thing] = []
        for kind in (target, *distractors, *furniture):
            for _ in range(20):
                row, column = rooms[int(rng.integers(len(rooms)))]
                place = rng.integers(self.points, size=2)
                if kind in FURNITURE:
                    place[int(rng.integers(2))] = int(rng.integers(2)) * (self.points - 1)
                y, x = (place + 0.5 + self.points * np.array((row, column))) * self.step
                near = (np.hypot(t.x - x, t.y - y) < _SPACING for t in (*things, *doorways))
                if not any(near):
                    things.append(Thing(kind, float(x), float(y)))
                    break
            else:
                return None
        return things


@dataclass(frozen=True, eq=False)
class House:
    """A house.

    Attributes:
        step: Metres between neighbouring points of the lattice.
        room_points: Points of the lattice on a side of a room.
        rooms: Row and column of each room.
        gaps: Two neighbouring rooms, and the first point of the doorway between them.
        things: What stands there, and the doorways; the first is looked for.
        papers: Wallpaper of each room.
        floor: Number of the floor.
    """

    step: float
    room_points: int
    rooms: tuple[Point, ...]
    gaps: tuple[tuple[Point, Point, int], ...]
    things: tuple[Thing, ...]
    papers: tuple[int, ...]
    floor: int

    @property
    def sought(self) -> Thing:
        """The thing that is looked for."""
        return self.things[0]

    @property
    def room_size(self) -> float:
        """Metres from wall to opposite wall of a room."""
        return self.room_points * self.step

    @property
    def gap_points(self) -> int:
        """Points of the lattice that lie in a doorway."""
        return max(1, round(DOORWAY.width / self.step))

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the lattice."""
        rows = 1 + max(row for row, _ in self.rooms)
        columns = 1 + max(column for _, column in self.rooms)
        return rows * self.room_points, columns * self.room_points

    def place(self, point: Point) -> tuple[float, float]:
        """Metres east and north of a point of the lattice."""
        return (point[1] + 0.5) * self.step, (point[0] + 0.5) * self.step

    @cached_property
    def centres(self) -> np.ndarray:
        """`(T, 2)`: metres east and north of each thing."""
        return np.array([(thing.x, thing.y) for thing in self.things])

    @cached_property
    def free(self) -> np.ndarray:
        """`(rows, columns)`: the points on which the agent can stand."""
        room_of = self._room_of()
        rows, columns = np.indices(self.shape)
        x, y = (columns + 0.5) * self.step, (rows + 0.5) * self.step
        free = room_of >= 0
        for thing in self.things:
            if thing.kind is not DOORWAY:
                free &= np.hypot(x - thing.x, y - thing.y) >= _FOOTPRINT + _BODY
        return free

    @cached_property
    def open_north(self) -> np.ndarray:
        """`(rows, columns)`: the points from which a step north is not blocked by a wall."""
        return self._open(0)

    @cached_property
    def open_east(self) -> np.ndarray:
        """`(rows, columns)`: the points from which a step east is not blocked by a wall."""
        return self._open(1)

    def _room_of(self) -> np.ndarray:
        room_of = np.full(self.shape, -1)
        size = self.room_points
        for number, (row, column) in enumerate(self.rooms):
            room_of[row * size : (row + 1) * size, column * size : (column + 1) * size] = number
        return room_of

    def _open(self, axis: int) -> np.ndarray:
        room_of, size = self._room_of(), self.room_points
        beyond = np.full_like(room_of, -2)
        if axis == 0:
            beyond[:-1] = room_of[1:]
        else:
            beyond[:, :-1] = room_of[:, 1:]
        is_open = (room_of == beyond) & (room_of >= 0)
        for one, other, gap in self.gaps:
            along = slice(gap, gap + self.gap_points)
            if other[axis] == one[axis]:
                continue
            room = is_open[one[0] * size :, one[1] * size :][:size, :size]
            if axis == 0:
                room[-1, along] = True
            else:
                room[along, -1] = True
        return is_open

    def is_connected(self) -> bool:
        """Whether every free point can be reached from every other."""
        reached = np.zeros(self.shape, bool)
        reached.flat[int(self.free.argmax())] = True
        north, east = self.open_north[:-1], self.open_east[:, :-1]
        count = 0
        while count < (count := int(reached.sum())):
            grown = reached.copy()
            grown[1:] |= reached[:-1] & north
            grown[:-1] |= reached[1:] & north
            grown[:, 1:] |= reached[:, :-1] & east
            grown[:, :-1] |= reached[:, 1:] & east
            reached = grown & self.free
        return count == int(self.free.sum())

    @cached_property
    def walls(self) -> tuple[Wall, ...]:
        """All sides of all walls."""
        return tuple(
            wall
            for number, room in enumerate(self.rooms)
            for axis in (0, 1)
            for end in (0, 1)
            for wall in self._side(room, axis, end, self.papers[number])
        )

    def _side(self, room: Point, axis: int, end: int, paper: int) -> Iterator[Wall]:
        """A side of a room, in pieces around the doorway: south and north for axis 0, west and
        east for axis 1."""
        size = self.room_size
        beyond = tuple(here + (2 * end - 1) * (axis == n) for n, here in enumerate(room))
        cuts = [0.0, size]
        for one, other, gap in self.gaps:
            if {one, other} == {room, beyond}:
                cuts[1:1] = [gap * self.step, (gap + self.gap_points) * self.step]
        across = (room[axis] + end) * size
        start = room[1 - axis] * size
        for low, high in zip(cuts[::2], cuts[1::2], strict=True):
            if high - low > 1e-9:
                faces = 1 - 2 * end
                if axis == 0:
                    yield Wall(start + low, across, start + high, across, faces, paper)
                else:
                    yield Wall(across, start + low, across, start + high, faces, paper)

    def fingerprint(self) -> str:
        """The whole house as text; equal for equal houses."""
        things = ";".join(f"{thing.kind.name} {thing.x:.3f} {thing.y:.3f}" for thing in self.things)
        return f"{self.step} {self.room_points} {self.rooms} {self.gaps} {things}"
