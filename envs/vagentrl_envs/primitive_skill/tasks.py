"""The tasks: how their scenes are drawn, when they are solved, and how to solve them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from vagentrl_envs.primitive_skill.scene import (
    FRONT,
    FULLY,
    HALF,
    HAND,
    NEAR,
    OPEN,
    SIDE,
    SIZE,
    Position,
    Scene,
    Target,
    Task,
    Thing,
    apart,
)
from vagentrl_envs.primitive_skill.skills import Skill, failure

SPACING = 80.0
"""Least distance between the middles of what stands on the table at the start."""
_LINE_SPACING = 75.0
_TRIES = 400


# ------------------------------------------------------------------------------------- the start


def draw_scene(
    task: Task, names: tuple[str, ...], cubes: int, grid: int, rng: np.random.Generator
) -> Scene | None:
    """A scene of a task; None where the draw leaves no room or is solved in part already.

    Args:
        task: The task.
        names: The colours that cubes may have.
        cubes: Cubes on the table.
        grid: Positions are multiples of so many millimetres.
        rng: The only source of randomness.
    """
    colors = [str(color) for color in rng.permutation(list(names))[:cubes]]
    marked = {"place": colors, "push": colors[:1]}.get(task, [])
    apples = ["red"] if task == "drawer" else []
    places = _places(len(colors) + len(marked) + len(apples), task, grid, rng)
    if places is None:
        return None
    things = [
        Thing(f"{c} cube", c, (x, y, HALF)) for c, (x, y) in zip(colors, places, strict=False)
    ]
    rest = places[len(colors) :]
    things += [Thing("apple", c, (x, y, HALF)) for c, (x, y) in zip(apples, rest, strict=False)]
    targets = [Target(f"{c} target", c, x, y) for c, (x, y) in zip(marked, rest, strict=False)]
    if task == "align":
        line = grid * int(rng.integers(-100 // grid, 50 // grid + 1))
        targets = [Target("line", "yellow", float(line), None)]
    every = [thing.name for thing in things]
    goal = {"pick": every[:1], "push": every[:1], "open": [], "drawer": ["apple"]}.get(task, every)
    drawer = 0.0 if task in ("open", "drawer") else None
    scene = Scene(task, tuple(goal), tuple(things), tuple(targets), drawer=drawer)
    return None if any(subgoals(scene)) else scene


def _places(
    count: int, task: Task, grid: int, rng: np.random.Generator
) -> list[tuple[float, float]] | None:
    """Points on the grid, apart from one another; None if they were not found."""
    far, wide = (50, 150) if task == "push" else (100, 200)
    near = -100 if task == "push" else -150
    left = 0 if task in ("open", "drawer") else wide  # the cabinet stands on the left
    found: list[tuple[float, float]] = []
    for _ in range(_TRIES):
        if len(found) == count:
            return found
        x = float(grid * rng.integers(-(-near // grid), far // grid + 1))
        y = float(grid * rng.integers(-(wide // grid), left // grid + 1))
        if all(apart((x, y, 0), (*other, 0)) >= SPACING for other in found):
            found.append((x, y))
    return found if len(found) == count else None


# --------------------------------------------------------------------------------------- the end


def subgoals(scene: Scene) -> list[bool]:
    """Which parts of the task are done; the task is solved when all are."""
    if scene.task == "pick":
        return [scene.held == scene.goal[0]]
    if scene.task in ("open", "drawer"):
        opened = scene.drawer is not None and scene.drawer >= OPEN
        return [opened] if scene.task == "open" else [opened, scene.inside(scene.thing("apple"))]
    if scene.task == "stack":
        return [_is_on(scene, upper, lower) for lower, upper in pairwise(scene.goal)]
    return [_is_home(scene, scene.thing(name)) for name in scene.goal]


def _is_home(scene: Scene, thing: Thing) -> bool:
    """Whether a thing lies on its target, or on the line."""
    if thing.name == scene.held or abs(thing.position[2] - HALF) > 8:
        return False
    if scene.task == "align":
        return abs(thing.position[0] - scene.targets[0].x) <= 15
    return apart(thing.position, scene.target(thing).position) <= NEAR


def _is_on(scene: Scene, upper: str, lower: str) -> bool:
    if scene.held in (upper, lower):
        return False
    above, below = scene.thing(upper).position, scene.thing(lower).position
    return apart(above, below) <= HALF and abs(above[2] - below[2] - SIZE) <= 8


def goal_in_words(scene: Scene) -> str:
    """The task as it is told to the agent."""
    match scene.task:
        case "pick":
            return f"pick up the {scene.goal[0]}"
        case "push":
            return f"push the {scene.goal[0]} onto its target"
        case "place":
            return "place each cube on the target of its colour"
        case "stack":
            return "stack the cubes, from the lowest: " + ", ".join(scene.goal)
        case "align":
            return "place all cubes on the line"
        case "open":
            return "open the drawer"
        case _:
            return "put the apple into the drawer"


# ------------------------------------------------------------------------------------ the oracle


def plan(scene: Scene) -> list[Skill] | None:
    """Skills that solve the task, if none of them slips; None if no way is known."""
    found: list[Skill] = []
    for _ in range(4 * len(scene.things) + 6):
        if all(subgoals(scene)):
            return found
        skill = _next(scene)
        if skill is None or failure(scene, skill) is not None:
            return None
        found.append(skill)
        scene = _expected(scene, skill)
    return None


def _next(scene: Scene) -> Skill | None:
    """The next skill on the way."""
    if scene.task in ("open", "drawer") and (scene.drawer or 0) < OPEN and scene.handle:
        if scene.held is not None:
            return _put_away(scene)
        x, y, z = scene.handle
        return Skill("push", scene.handle, (x - FULLY, y, z))
    if scene.task == "push":
        return _put_away(scene) if scene.held else next(_pushes(scene), None)
    for name, home in _moves(scene):
        if scene.held == name:
            return Skill("place", home) if _is_free(scene, home, name) else _put_away(scene)
        if scene.held is not None:
            return _put_away(scene)
        above = _lying_on(scene, scene.thing(name))
        blocker = None if home == HAND else _blocker(scene, home, name)
        return Skill("pick", (above or blocker or scene.thing(name)).position)
    return None


def _moves(scene: Scene) -> Iterator[tuple[str, Position]]:
    """Things that are not where they belong, and where that is, in the order to move them."""
    if scene.task == "pick":
        yield scene.goal[0], HAND
    elif scene.task == "drawer":
        yield "apple", (FRONT - (scene.drawer or 0) / 2, SIDE, 9 + HALF)
    elif scene.task == "stack":
        for lower, upper in pairwise(scene.goal):
            if scene.held == lower:
                yield lower, _free_spot(scene, lower) or HAND
            if not _is_on(scene, upper, lower):
                x, y, z = scene.thing(lower).position
                yield upper, (x, y, z + SIZE)
    else:
        waiting = [name for name in scene.goal if not _is_home(scene, scene.thing(name))]
        for name in sorted(waiting, key=lambda name: name != scene.held):
            thing = scene.thing(name)
            yield (
                name,
                _on_line(scene, thing) if scene.task == "align" else (scene.target(thing).position),
            )


def _pushes(scene: Scene) -> Iterator[Skill]:
    """Pushes along one axis or the other with nothing in the way; a cube stops a little after the
    finger does."""
    thing = scene.thing(scene.goal[0])
    here, there = thing.position, scene.target(thing).position
    for axis in (0, 1):
        way = there[axis] - here[axis]
        if abs(way) < 10:
            continue
        sign = 1 if way > 0 else -1
        start, end = list(here), list(here)
        start[axis] -= sign * (HALF + 25)
        end[axis] = there[axis] - sign * (HALF + 12)
        lane = sorted((start[axis], there[axis] + sign * HALF))
        others = [t.position for t in scene.lying() if t != thing]
        if not any(_in_lane(other, axis, here[1 - axis], lane) for other in others):
            yield Skill("push", (start[0], start[1], HALF), (end[0], end[1], HALF))


def _in_lane(position: Position, axis: int, middle: float, lane: list[float]) -> bool:
    """Whether a thing is in the way of a cube that is pushed along an axis."""
    within = lane[0] - SIZE < position[axis] < lane[1] + SIZE
    return within and abs(position[1 - axis] - middle) < SIZE + 15


def _expected(scene: Scene, skill: Skill) -> Scene:
    """The scene after a skill that goes well."""
    if skill.verb == "pick":
        name = min(scene.lying(), key=lambda t: _distance(t.position, skill.start)).name
        return scene.moved(name, HAND, held=name)
    if skill.verb == "place":
        return scene.moved(scene.held or "", skill.start)
    if scene.task in ("open", "drawer"):
        return scene.slid(FULLY)
    thing = scene.thing(scene.goal[0])
    axis = 0 if skill.start[0] != skill.end[0] else 1
    position = list(thing.position)
    position[axis] = scene.target(thing).position[axis]
    return scene.moved(thing.name, (position[0], position[1], position[2]))


def _put_away(scene: Scene) -> Skill | None:
    spot = _free_spot(scene, scene.held or "")
    return None if spot is None else Skill("place", spot)


def _free_spot(scene: Scene, name: str) -> Position | None:
    """A point of the table where nothing stands and nothing belongs."""
    targets = [target.position for target in scene.targets if target.y is not None]
    right = -60 if scene.drawer is not None else 180
    for x in (-150.0, -80.0, -10.0, 60.0):
        for y in range(right, -200, -60):
            spot = (x, float(y), HALF)
            taken = [t.position for t in scene.lying() if t.name != name] + targets
            if all(apart(spot, other) >= SPACING - 10 for other in taken):
                return spot
    return None


def _on_line(scene: Scene, thing: Thing) -> Position:
    """The point of the line that is nearest to a thing and has room for it."""
    others = [t.position for t in scene.lying() if t.name != thing.name]
    x = scene.targets[0].x
    slots = [(x, float(y), HALF) for y in range(-200, 201, 20)]
    free = [s for s in slots if all(apart(s, other) >= _LINE_SPACING for other in others)]
    from_y = 0.0 if thing.name == scene.held else thing.position[1]
    return min(free or slots, key=lambda slot: abs(slot[1] - from_y))


def _is_free(scene: Scene, spot: Position, name: str) -> bool:
    return _blocker(scene, spot, name) is None


def _blocker(scene: Scene, spot: Position, name: str) -> Thing | None:
    """The highest thing that stands where another is to be put."""
    there = [
        thing
        for thing in scene.lying()
        if thing.name != name
        and apart(thing.position, spot) < SIZE + 16
        and thing.position[2] > spot[2] - HALF
    ]
    return max(there, key=lambda thing: thing.position[2], default=None)


def _lying_on(scene: Scene, thing: Thing) -> Thing | None:
    """The highest thing above another."""
    above = [
        other
        for other in scene.lying()
        if apart(other.position, thing.position) < SIZE
        and other.position[2] > thing.position[2] + HALF
    ]
    return max(above, key=lambda other: other.position[2], default=None)


def _distance(a: Position, b: Position) -> float:
    return float(np.linalg.norm(np.subtract(a, b)))
