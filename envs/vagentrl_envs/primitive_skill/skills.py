"""The robot's skills: how they are written, and when they fail.

Whether a skill can begin is decided by geometry, alike for every simulator; what then becomes of
the things is the simulator's affair. A skill that fails leaves a scene whose `result` says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import hypot
from typing import Literal, get_args

from vagentrl_envs.primitive_skill.scene import (
    DEPTH,
    FRONT,
    FULLY,
    HALF,
    HAND,
    SIDE,
    TOP,
    WIDTH,
    Position,
    Scene,
    Thing,
    apart,
    whole,
)

Verb = Literal["pick", "place", "push"]
_VERBS: tuple[Verb, ...] = get_args(Verb)
_NUMBERS: dict[Verb, int] = {"pick": 3, "place": 3, "push": 6}
SIGNATURES = ("pick(x, y, z)", "place(x, y, z)", "push(x1, y1, z1, x2, y2, z2)")

PICKED, PLACED, PUSHED, OPENED = "picked", "placed", "pushed", "drawer moved"
UNREACHABLE, COLLISION, SLIPPED = "out of reach", "collision", "slipped"
DROPPED, FULL, EMPTY = "dropped", "hand full", "hand empty"
NOTHING, UNMOVED = "nothing there", "nothing moved"
RESULTS = (
    PICKED, PLACED, PUSHED, OPENED, UNREACHABLE, COLLISION, SLIPPED, DROPPED, FULL, EMPTY, NOTHING,
    UNMOVED,
)  # fmt: skip

_WRITTEN = re.compile(r"\s*(pick|place|push)\s*\(([-+\d,\s]{1,80})\)\s*", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"\s*([-+]?\d{1,4})\s*", re.ASCII)

SHOULDER: Position = (-615.0, 0.0, 333.0)
_WRIST, _OFFSET = 210.0, 88.0
"""How far the wrist is above, and nearer to the robot than, what the hand points down at."""
_NEAREST, _FARTHEST = 220.0, 700.0
"""Between which distances from the shoulder a Panda's wrist can be, pointing down."""
_FIRM, _LOOSE = 10.0, 25.0
"""How far off its centre a thing is held firmly, and is touched at all."""
_FINGER = 16.0
"""How broad each finger is, beside what is between them."""
_TOUCH = 3.0
"""By how much boxes may overlap and count as touching."""


@dataclass(frozen=True)
class Skill:
    """A skill with its coordinates, in millimetres."""

    verb: Verb
    start: Position
    end: Position = (0.0, 0.0, 0.0)

    def __str__(self) -> str:
        numbers = [*whole(self.start), *(whole(self.end) if self.verb == "push" else ())]
        return f"{self.verb}({', '.join(map(str, numbers))})"


def read_skill(text: str) -> Skill | None:
    """The skill that is written, such as ``pick(10, -20, 20)``; None if there is none."""
    if len(text) > 200 or (found := _WRITTEN.fullmatch(text)) is None:
        return None
    verb: Verb = next(verb for verb in _VERBS if verb == found[1].lower())
    numbers = [_NUMBER.fullmatch(part) for part in found[2].split(",")]
    if len(numbers) != _NUMBERS[verb] or None in numbers:
        return None
    values = [float(number[1]) for number in numbers if number] + [0.0] * 3
    return Skill(verb, (values[0], values[1], values[2]), (values[3], values[4], values[5]))


def is_reachable(position: Position) -> bool:
    """Whether the hand, pointing down, can be at a position."""
    sideways = hypot(position[0] - SHOULDER[0], position[1] - SHOULDER[1]) - _OFFSET
    return _NEAREST <= hypot(sideways, position[2] + _WRIST - SHOULDER[2]) <= _FARTHEST


def failure(scene: Scene, skill: Skill) -> str | None:
    """Why a skill cannot be done; None if it can be tried."""
    ends = [skill.start, skill.end] if skill.verb == "push" else [skill.start]
    if (skill.verb == "place") != (scene.held is not None):
        return EMPTY if scene.held is None else FULL
    if not all(map(is_reachable, ends)):
        return UNREACHABLE
    match skill.verb:
        case "pick":
            return _pick_failure(scene, skill.start)
        case "place":
            return _place_failure(scene, skill.start)
        case _:
            return None if grips_handle(scene, skill) else _push_failure(scene, ends)


def grasped(scene: Scene, position: Position) -> Thing | None:
    """The thing that the hand closes on at a position."""
    touched = [
        thing
        for thing in scene.lying()
        if apart(thing.position, position) <= _LOOSE
        and abs(thing.position[2] - position[2]) <= HALF
    ]
    return min(touched, key=lambda t: apart(t.position, position), default=None)


def grips_handle(scene: Scene, skill: Skill) -> bool:
    """Whether a push begins at the drawer's handle."""
    handle = scene.handle
    return handle is not None and (
        apart(handle, skill.start) <= _LOOSE and abs(handle[2] - skill.start[2]) <= HALF
    )


def pulled(scene: Scene, skill: Skill) -> Scene:
    """The scene after a push that began at the handle: the drawer follows along x."""
    before = scene.drawer or 0.0
    opening = min(max(before + skill.start[0] - skill.end[0], 0.0), FULLY)
    result = OPENED if abs(opening - before) >= 1 else UNMOVED
    return replace(scene.slid(opening), result=result)


def picked(scene: Scene, skill: Skill, slips: bool) -> Scene:
    """The scene after a pick that can be tried; a thing that is held off its centre slips."""
    thing = grasped(scene, skill.start)
    if thing is None:
        return replace(scene, result=NOTHING)
    if slips or apart(thing.position, skill.start) > _FIRM:
        return replace(scene, result=SLIPPED)
    return replace(scene.moved(thing.name, HAND, held=thing.name), result=PICKED)


def _pick_failure(scene: Scene, at: Position) -> str | None:
    thing = grasped(scene, at)
    if thing is None:
        return COLLISION if at[2] < 0 else NOTHING
    hand: Box = (at[0], at[1], at[2] + 40), (15.0, HALF + _FINGER, 50.0)
    others = [other for other in scene.lying() if other != thing]
    blocked = at[2] < 5 or _hits_cabinet(scene, hand) or any(_hits(hand, t) for t in others)
    return COLLISION if blocked else None


def _place_failure(scene: Scene, at: Position) -> str | None:
    box: Box = at, (HALF, HALF, HALF)
    hand: Box = (at[0], at[1], at[2] + 40), (15.0, HALF + _FINGER, 50.0)
    there = scene.lying()
    blocked = at[2] < HALF - 5 or any(_hits(box, thing) or _hits(hand, thing) for thing in there)
    return COLLISION if blocked or _hits_cabinet(scene, hand) else None


def _push_failure(scene: Scene, ends: list[Position]) -> str | None:
    finger: Box = ends[0], (10.0, 10.0, 15.0)
    low = min(end[2] for end in ends) < 5
    blocked = low or any(_hits(finger, thing) for thing in scene.lying())
    return COLLISION if blocked or _hits_cabinet(scene, finger) else None


Box = tuple[Position, tuple[float, float, float]]
"""The centre of a box and half its sides."""


def _hits(box: Box, thing: Thing) -> bool:
    return _overlap(box, (thing.position, (HALF, HALF, HALF)))


def _hits_cabinet(scene: Scene, box: Box) -> bool:
    """Whether a box overlaps the cabinet; the open drawer in front of it is no obstacle."""
    if scene.drawer is None:
        return False
    middle = (FRONT + DEPTH / 2 + 10, SIDE, TOP / 2)
    return _overlap(box, (middle, (DEPTH / 2 + 10, WIDTH / 2 + 10, TOP / 2)))


def _overlap(a: Box, b: Box) -> bool:
    return all(abs(a[0][k] - b[0][k]) < a[1][k] + b[1][k] - _TOUCH for k in range(3))
