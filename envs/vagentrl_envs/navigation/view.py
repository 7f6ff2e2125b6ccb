"""What the agent sees, relative to it: in words, as JSON and as a map."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from vagentrl.types import State
from vagentrl_envs.navigation.kinds import KINDS

DIRECTIONS = (
    "ahead",
    "ahead-right",
    "right",
    "back-right",
    "back",
    "back-left",
    "left",
    "ahead-left",
)
"""Eight directions of 45 degrees each, clockwise from straight ahead."""

MAP_RADIUS = 5
"""Cells of the map on each side of the agent; a cell is one metre wide."""
FLOOR, AGENT, TARGET = "_", "^", "*"
SYMBOLS = {kind.name: kind.symbol for kind in KINDS}


@dataclass(frozen=True)
class Sighting:
    """Where a thing is, seen from the agent.

    Attributes:
        name: Name of the thing.
        ahead: Metres ahead of the agent; negative behind it.
        right: Metres to the right of the agent; negative to the left.
    """

    name: str
    ahead: float
    right: float

    @classmethod
    def of(cls, name: str, east: float, north: float, angle: float) -> Sighting:
        """The sighting of a thing.

        Args:
            name: Name of the thing.
            east: Metres from the agent to the thing, to the east.
            north: The same to the north.
            angle: Degrees clockwise from the north in which the agent looks.
        """
        sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
        return cls(name, east * sine + north * cosine, east * cosine - north * sine)

    @property
    def distance(self) -> float:
        """Metres to the thing."""
        return math.hypot(self.ahead, self.right)

    @property
    def bearing(self) -> float:
        """Degrees clockwise from straight ahead, from -180 to 180."""
        return math.degrees(math.atan2(self.right, self.ahead))

    @property
    def direction(self) -> str:
        """The direction in words."""
        return DIRECTIONS[math.floor(self.bearing / 45 + 0.5) % 8]

    @property
    def place(self) -> str:
        """Distance and direction in words, such as ``2.1 m ahead-left``."""
        return f"{self.distance:.1f} m {self.direction}"

    @property
    def metres(self) -> list[float]:
        """Metres ahead and to the right, to a tenth of a metre."""
        return [_tenths(self.ahead), _tenths(self.right)]


@dataclass(frozen=True)
class View:
    """What the agent sees.

    Attributes:
        target: What it looks for.
        in_sight: Whether the target is in sight.
        things: What else is in sight, the nearest first.
        blocked: Whether something was in the way of its last move.
    """

    target: Sighting
    in_sight: bool
    things: tuple[Sighting, ...] = ()
    blocked: bool = False

    def sentences(self) -> str:
        """The view as an observation tells it."""
        seen = ([self.target] if self.in_sight else []) + list(self.things)
        seen.sort(key=lambda thing: thing.distance)
        told = "; ".join(f"a {thing.name} {thing.place}" for thing in seen)
        return f"You see {told or 'nothing but walls'}."

    def state(self, tell_hidden: bool) -> State:
        """The view in the three representations of claims.

        Args:
            tell_hidden: Whether the place of a target that is out of sight is told.
        """
        told = self.in_sight or tell_hidden
        clauses = [
            f"the {self.target.name} is {self.target.place if told else 'out of sight'}",
            *(f"a {thing.name} is {thing.place}" for thing in self.things),
        ]
        fields: dict[str, object] = {self.target.name: self.target.metres if told else None}
        for thing in self.things:
            places = fields.setdefault(thing.name, [])
            assert isinstance(places, list)  # no other thing has the target's name
            places.append(thing.metres)
        grid = self._map(told)
        if self.blocked:
            clauses.append("the way was blocked")
            fields["blocked"] = True
        return State("; ".join(clauses), json.dumps(fields, separators=(",", ":")), grid)

    def _map(self, told: bool) -> str:
        side = 2 * MAP_RADIUS + 1
        cells = [[FLOOR] * side for _ in range(side)]
        for thing in reversed(self.things):  # the nearest is written last
            row, column = _cell(thing)
            if max(abs(row), abs(column)) <= MAP_RADIUS:
                cells[MAP_RADIUS - row][MAP_RADIUS + column] = SYMBOLS.get(thing.name, "?")
        if told:
            row, column = (max(-MAP_RADIUS, min(MAP_RADIUS, n)) for n in _cell(self.target))
            cells[MAP_RADIUS - row][MAP_RADIUS + column] = TARGET
        cells[MAP_RADIUS][MAP_RADIUS] = AGENT
        return "\n".join(map("".join, cells))


def _cell(thing: Sighting) -> tuple[int, int]:
    return math.floor(thing.ahead + 0.5), math.floor(thing.right + 0.5)


def _tenths(metres: float) -> float:
    """Rounded to a tenth, without a negative zero."""
    return round(metres, 1) + 0.0


def legend() -> str:
    """What the symbols of the map stand for."""
    things = ", ".join(f"{symbol} {name}" for name, symbol in SYMBOLS.items())
    return f"{AGENT} you, {TARGET} what you look for, {things}, {FLOOR} anything else"


EXAMPLE = View(
    Sighting("ball", 2.0, -1.0), True, (Sighting("sofa", 3.0, 0.5), Sighting("bed", 4.0, 2.0))
)
"""A view to show how states are written."""
