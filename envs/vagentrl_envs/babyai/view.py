"""What the agent sees, in relative words, as JSON and as a grid of symbols."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vagentrl.types import State

COLOURS = {"blue": "b", "green": "g", "grey": "e", "purple": "p", "red": "r", "yellow": "y"}
KINDS = {"ball": "o", "box": "x", "key": "k", "door": "d", "open door": "n", "locked door": "l"}
WALL, FLOOR, UNSEEN, AGENT = "##", "__", "..", "^^"

LEGEND = (
    "two symbols for each cell, first the colour (b blue, g green, e grey, p purple, r red, "
    "y yellow), then the thing (o ball, x box, k key, d closed door, n open door, l locked door); "
    f"{WALL} wall, {FLOOR} floor, {UNSEEN} out of sight, {AGENT} you, facing up"
)


@dataclass(frozen=True, order=True)
class Thing:
    """A thing in sight.

    Attributes:
        ahead: Steps ahead of the agent.
        right: Steps to the right of the agent; negative to the left.
        name: Its colour and kind, such as ``red ball`` or ``green open door``.
    """

    ahead: int
    right: int
    name: str

    @property
    def place(self) -> str:
        """The place in words, such as ``2 steps ahead and 1 to the left``."""
        return place(self.ahead, self.right)


@dataclass(frozen=True)
class View:
    """What the agent sees and carries.

    Attributes:
        things: The things in sight, the nearest first.
        walls: Steps to the wall ahead, to the left and to the right; None if it is out of sight.
        carried: Name of the thing that the agent carries; None for nothing.
        rows: The view as symbols, two to a cell; the agent is in the middle of the last row.
    """

    things: tuple[Thing, ...]
    walls: tuple[int | None, int | None, int | None]
    carried: str | None
    rows: tuple[str, ...]

    @classmethod
    def of(cls, level: Any) -> View:
        """The view of a level's agent: a square of cells ahead of it and to its sides."""
        grid, visible = level.gen_obs_grid()
        last, middle = grid.height - 1, grid.width // 2
        rows, things = [], []
        for y in range(grid.height):
            row = []
            for x in range(grid.width):
                cell = grid.get(x, y)
                row.append(AGENT if (x, y) == (middle, last) else _symbol(cell, visible[x, y]))
                is_thing = cell is not None and cell.type != "wall"
                if is_thing and visible[x, y] and (x, y) != (middle, last):
                    things.append(Thing(last - y, x - middle, _name(cell)))
            rows.append("".join(row))
        things.sort(key=lambda thing: (thing.ahead + abs(thing.right), thing))
        cells = [[row[i : i + 2] for i in range(0, len(row), 2)] for row in rows]
        walls = (
            _until_wall([cells[y][middle] for y in range(last - 1, -1, -1)]),
            _until_wall(cells[last][middle - 1 :: -1] if middle else []),
            _until_wall(cells[last][middle + 1 :]),
        )
        carried = None if level.carrying is None else _name(level.carrying)
        return cls(tuple(things), walls, carried, tuple(rows))

    def sentences(self) -> str:
        """The view as an observation tells it."""
        seen = [f"a {thing.name} {thing.place}" for thing in self.things]
        ways = ("{} ahead", "{} to the left", "{} to the right")
        seen += [
            f"a wall {way.format(steps(distance))}"
            for way, distance in zip(ways, self.walls, strict=True)
            if distance is not None
        ]
        return (
            f"You see {'; '.join(seen) or 'nothing'}.\n"
            f"You carry {'nothing' if self.carried is None else f'a {self.carried}'}."
        )

    def state(self) -> State:
        """The view in the three representations of claims."""
        natural = [f"a {thing.name} is {thing.place}" for thing in self.things]
        natural.append(f"you carry {'nothing' if self.carried is None else f'a {self.carried}'}")
        structured = {
            "things": [[thing.name, thing.ahead, thing.right] for thing in self.things],
            "carried": self.carried,
        }
        return State(
            "; ".join(natural),
            json.dumps(structured, separators=(",", ":")),
            "\n".join((*self.rows, f"carried:{self._carried_symbol()}")),
        )

    def _carried_symbol(self) -> str:
        if self.carried is None:
            return FLOOR
        colour, _, kind = self.carried.partition(" ")
        return COLOURS[colour] + KINDS[kind]


def place(ahead: int, right: int) -> str:
    """A place in relative words."""
    side = "" if not right else f"{abs(right)} to the {'right' if right > 0 else 'left'}"
    if not ahead:
        return f"{steps(abs(right))} to the {'right' if right > 0 else 'left'}"
    return f"{steps(ahead)} ahead" + (f" and {side}" if side else "")


def steps(number: int) -> str:
    """A distance in words."""
    return "1 step" if number == 1 else f"{number} steps"


def _name(thing: Any) -> str:
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    state = "open " if thing.is_open else "locked " if thing.is_locked else ""
    return f"{thing.color} {state}door"


def _symbol(cell: Any, visible: bool) -> str:
    if not visible:
        return UNSEEN
    if cell is None:
        return FLOOR
    if cell.type == "wall":
        return WALL
    colour, _, kind = _name(cell).partition(" ")
    return COLOURS[colour] + KINDS[kind]


def _until_wall(cells: list[str]) -> int | None:
    """Steps to the first wall, if everything before it is in sight."""
    for distance, cell in enumerate(cells, start=1):
        if cell == WALL:
            return distance
        if cell == UNSEEN:
            return None
    return None
