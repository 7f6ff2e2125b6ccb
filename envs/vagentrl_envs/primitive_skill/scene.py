"""What stands on the table, as frozen data. Lengths and positions are in millimetres.

The origin is the middle of the table's workspace: x grows away from the robot, y to its left, z
upwards from the table. The robot's base is at x = -615, as in ManiSkill's table scene. A position
is that of a thing's centre.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import hypot
from typing import Literal

from vagentrl.types import State

Position = tuple[float, float, float]
Task = Literal["pick", "push", "place", "stack", "align", "open", "drawer"]

SIZE = 40.0
"""Sides of a cube, diameter of the apple."""
HALF = SIZE / 2
HAND: Position = (-200.0, 0.0, 250.0)
"""Where the hand rests between skills, and what it holds with it."""
NEAR = 25.0
"""How near to its target a thing must be, sideways."""

COLORS: dict[str, tuple[float, float, float]] = {
    "red": (0.85, 0.12, 0.12),
    "green": (0.1, 0.65, 0.2),
    "blue": (0.12, 0.3, 0.85),
    "yellow": (0.95, 0.8, 0.1),
    "purple": (0.55, 0.2, 0.65),
}

# The drawer slides towards the robot out of a cabinet whose front is at x = FRONT.
FRONT, SIDE, TOP = 20.0, 130.0, 90.0
"""x of the cabinet's front, y of its middle, z of its top."""
DEPTH, WIDTH = 120.0, 120.0
"""Of the drawer's inside."""
FULLY = 110.0
"""How far the drawer comes out."""
OPEN = 80.0
"""From here on the drawer counts as open."""


@dataclass(frozen=True)
class Thing:
    """A thing that can be moved.

    Attributes:
        name: Its colour and kind, such as ``red cube``; ``apple`` for the apple.
        color: One of `COLORS`.
        position: Its centre.
        turn: Its orientation, a quaternion (x, y, z, w).
    """

    name: str
    color: str
    position: Position
    turn: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)

    @property
    def is_apple(self) -> bool:
        return self.name == "apple"


@dataclass(frozen=True)
class Target:
    """A mark on the table: a square for the thing of its colour, or a line along y.

    Attributes:
        name: Such as ``red target``, or ``line``.
        color: One of `COLORS`.
        x: Of its middle.
        y: Of its middle; None for a line.
    """

    name: str
    color: str
    x: float
    y: float | None

    @property
    def position(self) -> Position:
        """Where a thing on it has its centre."""
        return (self.x, self.y or 0.0, HALF)


@dataclass(frozen=True)
class Scene:
    """All that can change on the table, and the task.

    Attributes:
        task: What is to be done.
        goal: The names of the things that it is about, in its order: of a stack the lowest first.
        things: What can be moved.
        targets: Marks on the table.
        held: Name of what the hand holds.
        drawer: How far the drawer is out; None where there is no cabinet.
        result: What came of the last skills, in words.
    """

    task: Task
    goal: tuple[str, ...]
    things: tuple[Thing, ...]
    targets: tuple[Target, ...] = ()
    held: str | None = None
    drawer: float | None = None
    result: str = "none"

    def thing(self, name: str) -> Thing:
        return next(thing for thing in self.things if thing.name == name)

    def target(self, thing: Thing) -> Target:
        """The target of a thing."""
        return next(target for target in self.targets if target.color == thing.color)

    def lying(self) -> list[Thing]:
        """The things that the hand does not hold."""
        return [thing for thing in self.things if thing.name != self.held]

    def moved(self, name: str, position: Position, held: str | None = None) -> Scene:
        """The scene with a thing elsewhere, upright, and with the hand as told."""
        things = tuple(
            Thing(t.name, t.color, position) if t.name == name else t for t in self.things
        )
        return replace(self, things=things, held=held)

    def slid(self, opening: float) -> Scene:
        """The scene with the drawer so far out, and what lies in it moved along."""
        if self.drawer is None:
            return self
        step = self.drawer - opening
        things = tuple(
            replace(t, position=(t.position[0] + step, *t.position[1:])) if self.inside(t) else t
            for t in self.things
        )
        return replace(self, things=things, drawer=opening)

    def inside(self, thing: Thing) -> bool:
        """Whether a thing lies in the drawer."""
        if self.drawer is None or thing.name == self.held:
            return False
        x, y, z = thing.position
        left = FRONT - self.drawer
        return left <= x <= left + DEPTH and abs(y - SIDE) <= WIDTH / 2 and z < TOP

    @property
    def handle(self) -> Position | None:
        """Where the drawer's handle is."""
        return None if self.drawer is None else (FRONT - self.drawer - 15, SIDE, 45.0)


def apart(a: Position, b: Position) -> float:
    """Distance sideways."""
    return hypot(a[0] - b[0], a[1] - b[1])


def whole(position: Position) -> tuple[int, int, int]:
    """A position as it is told: in whole millimetres."""
    x, y, z = (round(number) for number in position)
    return x, y, z


# ------------------------------------------------------------------------------------ in words

CELL = 50
"""Millimetres of a cell of the map."""
ROWS, COLUMNS = range(4, -5, -1), range(5, -6, -1)
"""Of the map: x from far to near, y from left to right, both in cells."""


def describe(scene: Scene) -> State:
    """The scene in the three representations."""
    held, drawer = scene.held or "nothing", scene.drawer
    natural = [f"the {t.name} is at {whole(t.position)}" for t in scene.lying()]
    natural += [_marked(target) for target in scene.targets]
    natural.append(f"the hand holds {'the ' if scene.held else ''}{held}")
    told: dict[str, object] = {t.name: whole(t.position) for t in scene.lying()}
    told |= {t.name: round(t.x) if t.y is None else whole(t.position)[:2] for t in scene.targets}
    told |= {"hand": held, "result": scene.result}
    if drawer is not None and scene.handle is not None:
        natural.append(f"the drawer is {drawer:.0f} open")
        natural.append(f"the handle is at {whole(scene.handle)}")
        told |= {"drawer": round(drawer), "handle": whole(scene.handle)}
    natural.append(f"the result of the last skill is {scene.result}")
    return State(
        natural="; ".join(natural),
        structured=json.dumps(told, separators=(",", ":")),
        symbolic=_map(scene),
    )


def _marked(target: Target) -> str:
    if target.y is None:
        return f"the {target.name} is at x = {target.x:.0f}"
    return f"the {target.name} is at {whole(target.position)[:2]}"


def _map(scene: Scene) -> str:
    """The table from above, far rows first: a capital for the uppermost thing in a cell, a small
    letter for a target; then what is held, the drawer, and the result."""
    symbols = {
        (round(t.x / CELL), column): t.color[0]
        for t in scene.targets
        for column in (COLUMNS if t.y is None else [round(t.y / CELL)])
    }
    for thing in sorted(scene.lying(), key=lambda thing: thing.position[2]):
        x, y, _ = thing.position
        symbols[round(x / CELL), round(y / CELL)] = thing.name[0].upper()
    rows = ["".join(symbols.get((row, column), "_") for column in COLUMNS) for row in ROWS]
    rows.append(f"hand:{scene.held[0].upper() if scene.held else '_'}")
    if scene.drawer is not None:
        rows.append(f"drawer:{scene.drawer:03.0f}")
    return "\n".join([*rows, f"result:{scene.result}"])
