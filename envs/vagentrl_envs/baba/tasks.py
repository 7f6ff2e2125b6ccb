"""The 40 tasks of the benchmark Baba Is AI (Cloos et al. 2024), and how their levels are drawn.

The sizes of the rooms, the sentences in them and the areas in which things are placed are those of
the published benchmark. Cells are `(row, column)`, counted with the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np

from vagentrl.errors import ConfigError, seen
from vagentrl_envs.baba.game import IS, KINDS, NOUNS, Cell, Room, State, noun_text, property_text

ONE_ROOM, TWO_ROOMS = Room(8, 8), Room(9, 13)
WALL_COLUMN = 6
"""Column of the wall between two rooms."""

OBJECTS = ("ball", "key", "door")
"""What may win, or lie about: the benchmark draws three different ones for each level."""

Goal = Literal["goto_win", "make_win", "make_you", "make_you-make_win", "make_wall_win"]
Side = Literal["left", "right", "anywhere"]


def _area(rows: tuple[int, int], columns: tuple[int, int]) -> tuple[Cell, ...]:
    """Return the cells of a rectangle, first and last row and column included."""
    return tuple(
        (row, column)
        for row in range(rows[0], rows[1] + 1)
        for column in range(columns[0], columns[1] + 1)
    )


_SIDES: dict[Side, tuple[Cell, ...]] = {
    "left": _area((1, 7), (1, 4)),
    "right": _area((2, 7), (7, 10)),
    "anywhere": _area((2, 7), (1, 11)),
}
_LEFT_MIDDLE, _RIGHT_MIDDLE = _area((3, 5), (2, 5)), _area((3, 5), (7, 10))
_LEFT_SMALL, _RIGHT_SMALL = _area((3, 5), (2, 4)), _area((3, 5), (8, 10))
_RIGHT_EDGE = (*_area((2, 6), (11, 11)), *_area((7, 7), (8, 11)))
"""Where a text block cannot be pushed to a sentence that wins."""
_ONE_ROOM_EDGE = (*_area((6, 6), (4, 6)), *_area((1, 1), (4, 6)), *_area((2, 5), (6, 6)))


class _Level:
    """A level that is being drawn."""

    def __init__(self, room: Room, rng: np.random.Generator) -> None:
        self.room = room
        self.rng = rng
        self.boards = [0] * KINDS

    def put(self, kind: int, cell: Cell) -> None:
        self.boards[kind] |= self.room.bit(cell)

    def scatter(self, kind: int, cells: Sequence[Cell]) -> None:
        """Put a thing on a random one of the cells that are still empty."""
        taken = 0
        for board in self.boards:
            taken |= board
        free = [cell for cell in cells if not taken & self.room.bit(cell)]
        self.put(kind, free[self.rng.integers(len(free))])

    def say(self, noun: str, name: str, start: Cell, missing: int | None = None) -> int | None:
        """Put the blocks of a sentence in a row; return the kind of the block that is left out."""
        kinds = (noun_text(noun), IS, property_text(name))
        for number, kind in enumerate(kinds):
            if number != missing:
                self.put(kind, (start[0], start[1] + number))
        return None if missing is None else kinds[missing]


@dataclass(frozen=True)
class Task:
    """What the levels of a task have in common.

    Attributes:
        name: The benchmark's name, without ``env/``.
        goal: What has to be done.
        two_rooms: Whether a wall divides the level into two rooms.
        side: With two rooms, where the objects are.
        wall_stops: With two rooms, whether WALL IS STOP holds at the start.
        other_object: Whether there is an object that does not win.
        other_noun: Whether a text block of another noun lies about.
        irrelevant_noun: Whether the level has no object of that noun.
        other_win: Whether a second sentence says that something absent wins.
    """

    name: str
    goal: Goal
    two_rooms: bool = False
    side: Side = "left"
    wall_stops: bool = False
    other_object: bool = True
    other_noun: bool = True
    irrelevant_noun: bool = False
    other_win: bool = False

    @property
    def room(self) -> Room:
        return TWO_ROOMS if self.two_rooms else ONE_ROOM

    def draw(self, rng: np.random.Generator) -> State:
        """Draw a level, which may be unsolvable."""
        level = _Level(self.room, rng)
        win, other, third = (OBJECTS[number] for number in rng.permutation(len(OBJECTS)))
        stray = third if self.irrelevant_noun else other
        match self.goal:
            case "goto_win" | "make_win" if not self.two_rooms:
                self._one_room(level, win, stray)
            case "goto_win" | "make_win":
                self._two_rooms(level, win, stray, third)
            case _:
                self._other_goals(level, win, stray)
        objects = [win, other] if self.other_object else [win]
        if self.two_rooms:
            cells = _SIDES[self.side]
        else:
            cells = _area((2, 6), (1, 6))
            level.scatter(NOUNS.index("baba"), cells)
        for noun in objects:
            level.scatter(NOUNS.index(noun), cells)
        return tuple(level.boards)

    def _one_room(self, level: _Level, win: str, stray: str) -> None:
        level.say("baba", "you", (6, 1))
        noun = level.say(win, "win", (1, 1), 0 if self.goal == "make_win" else None)
        if noun is not None:
            level.scatter(noun, _area((2, 5), (2, 5)))
        if self.other_noun:
            level.scatter(noun_text(stray), _ONE_ROOM_EDGE)

    def _two_rooms(self, level: _Level, win: str, stray: str, third: str) -> None:
        self._wall(level)
        level.say("baba", "you", (7, 1))
        stop = level.say(
            "wall", "stop", (2, 1), None if self.wall_stops else int(level.rng.integers(1, 3))
        )
        noun = level.say(win, "win", (1, 9), 0 if self.goal == "make_win" else None)
        if self.other_win:
            level.say(third, "win", (4, 9))
        if self.other_noun:
            out_of_reach = self.other_object and not self.irrelevant_noun
            level.scatter(noun_text(stray), _RIGHT_EDGE if out_of_reach else _RIGHT_MIDDLE)
        if stop is not None:
            level.scatter(stop, _LEFT_MIDDLE)
        if noun is not None:
            level.scatter(noun, _RIGHT_MIDDLE)
        level.scatter(NOUNS.index("baba"), _LEFT_MIDDLE)

    def _other_goals(self, level: _Level, win: str, stray: str) -> None:
        self._wall(level)
        if self.goal == "make_wall_win":
            level.say("baba", "you", (7, 1))
            level.say("wall", "stop", (2, 2))
            level.scatter(noun_text(stray), _RIGHT_SMALL)
            noun, cells = level.say(win, "win", (1, 9), 0), _RIGHT_EDGE
        else:
            level.say("baba", "you", (6, 1))  # not in the last row: BABA can be pushed out of it
            level.say("wall", "stop", (1, 1))
            level.scatter(noun_text(stray), _LEFT_SMALL)
            made = self.goal == "make_you-make_win"
            noun, cells = level.say(win, "win", (1, 9), 0 if made else None), _RIGHT_SMALL
        if noun is not None:
            level.scatter(noun, cells)
        level.scatter(NOUNS.index("baba"), _LEFT_SMALL)

    def _wall(self, level: _Level) -> None:
        for row in range(1, level.room.rows - 1):
            level.put(NOUNS.index("wall"), (row, WALL_COLUMN))


def _tasks() -> dict[str, Task]:
    both = Task("", "goto_win")
    alone = replace(both, other_object=False, other_noun=False)
    plain = {
        "": alone,
        "-distr_obj": replace(alone, other_object=True),
        "-distr_rule": replace(alone, other_noun=True),
        "-distr_obj_rule": both,
        "-distr_obj-irrelevant_rule": replace(both, irrelevant_noun=True),
    }
    more = plain | {"-distr_win_rule": replace(both, other_win=True)}
    goals: tuple[Goal, ...] = ("goto_win", "make_win")
    tasks = [
        replace(task, name=goal + name, goal=goal) for goal in goals for name, task in plain.items()
    ]
    families: list[tuple[str, Side, bool, tuple[Goal, ...], dict[str, Task]]] = [
        ("", "left", False, goals, more),
        ("break_stop-", "right", True, goals, plain),
        ("maybe_break_stop-", "anywhere", True, goals[:1], plain),
    ]
    for prefix, side, stops, wanted, variants in families:
        for goal in wanted:
            for name, task in variants.items():
                tasks.append(
                    replace(
                        task,
                        name=f"two_room-{prefix}{goal}{name}",
                        goal=goal,
                        two_rooms=True,
                        side=side,
                        wall_stops=stops,
                    )
                )
    rooms = replace(both, two_rooms=True, side="right", wall_stops=True)
    tasks += [
        replace(rooms, name="two_room-make_you", goal="make_you"),
        replace(rooms, name="two_room-make_you-make_win", goal="make_you-make_win"),
        replace(rooms, name="two_room-make_wall_win", goal="make_wall_win", irrelevant_noun=True),
    ]
    return {task.name: task for task in tasks}


TASKS = _tasks()
"""The benchmark's 40 tasks by name."""


def find_tasks(names: str | Sequence[str]) -> tuple[Task, ...]:
    """Return the tasks with these names.

    Args:
        names: Names or patterns in which ``*`` stands for anything; a name may start with
            ``env/``, as in the benchmark.

    Raises:
        ConfigError: When a name fits no task.
    """
    found: dict[str, Task] = {}
    wanted = [names] if isinstance(names, str) else names
    if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
        raise ConfigError(f"tasks is {seen(names)}; give a task's name, or a list of names")
    for name in wanted:
        pattern = name.removeprefix("env/")
        fitting = {known: task for known, task in TASKS.items() if fnmatchcase(known, pattern)}
        if not fitting:
            raise ConfigError(
                f"tasks: there is no task {name!r}; give some of {', '.join(TASKS)}, or a pattern "
                "such as 'two_room-*' or '*'"
            )
        found |= fitting
    if not found:
        raise ConfigError("tasks is empty; give a task's name, such as 'goto_win', or '*' for all")
    return tuple(found.values())
