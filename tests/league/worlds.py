"""Worlds in which agents of a given skill and adversaries make claims."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field

from vagentrl.environment import ActionEnvironment
from vagentrl.formats import WorldModeling
from vagentrl.types import Reply, Representation, State
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.sokoban import Sokoban

Cell = tuple[int, int]
Objects = dict[str, list[Cell]]

SYMBOLS: Mapping[str, Mapping[str, list[str]]] = {
    "sokoban": {
        "P": ["player"], "X": ["boxes"], "O": ["targets"], "*": ["boxes", "targets"],
        "S": ["player", "targets"],
    },
    "lake": {
        "P": ["player"], "G": ["goal"], "O": ["holes"], "X": ["player", "holes"],
        "*": ["player", "goal"],
    },
}  # fmt: skip
WORDS = {"player": "the player", "boxes": "the box", "targets": "the target", "goal": "the goal",
         "holes": "a hole"}  # fmt: skip


@dataclass(frozen=True)
class World:
    """An environment, and how to write a state of it.

    Attributes:
        name: ``sokoban`` or ``lake``.
        make: Makes the environment, for a representation.
        slips: Whether the result of an action is uncertain.
    """

    name: str
    make: Callable[[Representation], ActionEnvironment]
    slips: bool = False

    def objects(self, state: State) -> Objects:
        """The cells of the objects of each class."""
        read = json.loads(state.structured)
        return {
            name: [tuple(value)] if isinstance(value[0], int) else [tuple(c) for c in value]
            for name, value in read.items()
            if value
        }

    def write(self, objects: Objects, state: State, representation: Representation) -> str:
        """Describe a state; walls and the size of the grid are taken from the true one."""
        if representation == "natural":
            placed = [(name, cell) for name, cells in objects.items() for cell in cells]
            return "; ".join(f"{WORDS[n]} is at row {r}, column {c}" for n, (r, c) in placed)
        if representation == "structured":
            single = ("player", "goal")
            read = {n: c[0] if n in single and len(c) == 1 else c for n, c in objects.items()}
            return json.dumps(read, separators=(",", ":"))
        return self._grid(objects, state)

    def _grid(self, objects: Objects, state: State) -> str:
        rows = [["#" if c == "#" else "_" for c in line] for line in state.symbolic.splitlines()]
        there: dict[Cell, set[str]] = {}
        for name, cells in objects.items():
            for cell in cells:
                there.setdefault(cell, set()).add(name)
        symbols = {frozenset(names): s for s, names in SYMBOLS[self.name].items()}
        for (row, column), names in there.items():
            rows[row][column] = symbols.get(frozenset(names), symbols[frozenset([min(names)])])
        return "\n".join("".join(row) for row in rows)

    def free(self, state: State) -> list[Cell]:
        """The cells that are no wall."""
        lines = state.symbolic.splitlines()
        return [(r, c) for r, line in enumerate(lines) for c, s in enumerate(line) if s != "#"]


def _sokoban(representation: Representation) -> ActionEnvironment:
    return Sokoban(
        format=WorldModeling(representation), observation="text", turn_limit=6, min_solution=6
    )


def _lake(representation: Representation, slip: float = 0.0) -> ActionEnvironment:
    return FrozenLake(
        slip=slip, size=5, hole_share=0.12, format=WorldModeling(representation),
        observation="text", turn_limit=6, random_start=True, min_solution=3,
    )  # fmt: skip


WORLDS = {
    "Sokoban": World("sokoban", _sokoban),
    "FrozenLake": World("lake", _lake),
    "slippery FrozenLake": World("lake", lambda r: _lake(r, 0.3), slips=True),
}


@dataclass
class Scene:
    """What an agent has to write its claims from in one turn.

    Attributes:
        world: The world.
        representation: How states are to be written.
        now: The true state before the action.
        then: The state that the action most probably leads to.
        skill: Probability with which the agent knows where an object is.
        rng: Random numbers.
        prompt: The system prompt.
        earlier: The agent's claims in the turns before, oldest first.
    """

    world: World
    representation: Representation
    now: State
    then: State
    skill: float
    rng: random.Random
    prompt: str
    earlier: list[tuple[str, str]] = field(default_factory=list)

    def known(self, state: State) -> Objects:
        """The state as the agent knows it: each object elsewhere with probability 1 - skill."""
        cells = self.world.free(state)
        return {
            name: [c if self.rng.random() < self.skill else self.rng.choice(cells) for c in there]
            for name, there in self.world.objects(state).items()
        }

    def tell(self, objects: Objects) -> str:
        """Write a state in the world's own form."""
        return self.world.write(objects, self.now, self.representation)


def expected(environment: ActionEnvironment, action: str) -> State:
    """The state that an action most probably leads to."""
    twin = copy(environment)
    if isinstance(twin, FrozenLake):
        twin.slip = 0.0
    twin.step(Reply("", actions=(action,)))
    state = twin.state()
    assert state is not None
    return state
