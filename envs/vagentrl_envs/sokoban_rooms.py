"""Sokoban rooms: what one is, and how one is drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from vagentrl.environment import Split, split_of, split_of_state
from vagentrl.errors import ConfigError, EnvError
from vagentrl_envs.sokoban_solver import (
    DIRECTIONS,
    LONGEST_SEARCH,
    Cell,
    Layout,
    Position,
    Solver,
)

WALL, FLOOR, TARGET, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET = range(7)
STANDARD_SYMBOLS = "#_OX*PS"

DRAWS = 500
"""Layouts that are drawn before a room is declared impossible."""


@dataclass(frozen=True)
class Room:
    """A position in a layout, as cells `(row, column)`; what an episode starts from.

    The wall cells include the outer ones.
    """

    size: tuple[int, int]
    walls: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @classmethod
    def parse(cls, text: str, symbols: str = STANDARD_SYMBOLS) -> Room:
        """Reads a grid of symbols: wall, floor, target, box, box on target, player (on target)."""
        lines = text.split("\n")
        codes = np.array([[symbols.index(symbol) for symbol in line] for line in lines])

        def cells(*kinds: int) -> frozenset[Cell]:
            rows, columns = np.isin(codes, kinds).nonzero()
            return frozenset(zip(rows.tolist(), columns.tolist(), strict=True))

        (player,) = cells(PLAYER, PLAYER_ON_TARGET)
        return cls(
            size=(codes.shape[0], codes.shape[1]),
            walls=cells(WALL),
            targets=cells(TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET),
            boxes=cells(BOX, BOX_ON_TARGET),
            player=player,
        )

    def codes(self) -> np.ndarray:
        """What stands on each cell: `(rows, columns)` of WALL, FLOOR, TARGET, …"""
        codes = np.full(self.size, FLOOR, dtype=np.uint8)
        for cell in self.walls:
            codes[cell] = WALL
        for cell in self.targets:
            codes[cell] = TARGET
        for cell in self.boxes:
            codes[cell] = BOX_ON_TARGET if cell in self.targets else BOX
        codes[self.player] = PLAYER_ON_TARGET if self.player in self.targets else PLAYER
        return codes

    def grid(self, symbols: str = STANDARD_SYMBOLS) -> str:
        """The room as text, one line per row."""
        return "\n".join("".join(symbols[code] for code in row) for row in self.codes().tolist())

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    @property
    def split(self) -> Split:
        """The split of the room itself, whatever its seed."""
        return split_of_state(self.grid())


@dataclass(frozen=True)
class RoomSpec:
    """Which rooms to draw.

    Attributes:
        size: Rows and columns, outer walls included.
        boxes: Boxes, and as many targets.
        inner_walls: Wall cells at random places inside, or ``walk`` to carve the floor by a
            random walk.
        min_solution: Fewest moves of a shortest solution.
        max_solution: Most moves of a shortest solution.
    """

    size: tuple[int, int]
    boxes: int
    inner_walls: int | Literal["walk"]
    min_solution: int
    max_solution: int

    def draw(self, seed: int) -> tuple[Solver, Position]:
        """The room of a seed: what solves it, and the position to start from.

        Within a layout with its targets, all positions within the bounds that have the fewest
        boxes on a target already are equally likely. The room is of its seed's split, so that no
        room occurs in two of them.
        """
        rng, split = np.random.Generator(np.random.PCG64(seed)), split_of(seed)
        for _ in range(DRAWS):
            walls = self._walls(rng)
            layout = _layout(self.size, walls)
            if not layout.connected() or len(layout.cells) < 2 * self.boxes + 1:
                continue
            targets = rng.permutation(len(layout.cells))[: self.boxes].tolist()
            solver = _solver(layout, sum(1 << target for target in targets), self.max_solution)
            starts = self._starts(solver)
            for choice in rng.integers(len(starts), size=8).tolist() if starts else ():
                if room_at(solver, starts[choice]).split == split:
                    return solver, starts[choice]
        raise EnvError(
            f"no room of size {self.size} with boxes {self.boxes}, inner_walls {self.inner_walls} "
            f"and a shortest solution of {self.min_solution} to {self.max_solution} moves in "
            f"{DRAWS} layouts (seed {seed}, for {split}); "
            "widen min_solution and max_solution, or the size"
        )

    def _starts(self, solver: Solver) -> list[Position]:
        positions = [p for layer in solver.layers[self.min_solution :] for p in layer]
        if self.boxes == 1:
            return positions
        home = [(boxes & solver.targets).bit_count() for _, boxes in positions]
        fewest = min(home, default=0)
        return [p for p, count in zip(positions, home, strict=True) if count == fewest]

    def _walls(self, rng: np.random.Generator) -> frozenset[Cell]:
        if self.inner_walls == 0:
            return outer_walls(self.size)
        rows, columns = self.size[0] - 2, self.size[1] - 2
        inside = [(row + 1, column + 1) for row in range(rows) for column in range(columns)]
        if self.inner_walls == "walk":
            walled = set(inside) - self._walk(rng)
        else:
            chosen = rng.permutation(len(inside))[: self.inner_walls].tolist()
            walled = {inside[index] for index in chosen}
        return outer_walls(self.size) | walled

    def _walk(self, rng: np.random.Generator) -> set[Cell]:
        """Cells on a random walk that covers about half of the inside."""
        rows, columns = self.size[0] - 2, self.size[1] - 2
        wanted = max(rows * columns // 2, min(2 * self.boxes + 2, rows * columns))
        row, column = int(rng.integers(rows)), int(rng.integers(columns))
        carved = {(row + 1, column + 1)}
        while len(carved) < wanted:
            for direction in rng.integers(4, size=32).tolist():
                down, right = DIRECTIONS[direction]
                row = min(max(row + down, 0), rows - 1)
                column = min(max(column + right, 0), columns - 1)
                carved.add((row + 1, column + 1))
                if len(carved) == wanted:
                    break
        return carved


def solve(room: Room) -> tuple[Solver, Position]:
    """What solves a room, and its position."""
    layout = _layout(room.size, room.walls)
    targets = sum(1 << layout.number[cell] for cell in room.targets)
    boxes = sum(1 << layout.number[cell] for cell in room.boxes)
    return _solver(layout, targets, LONGEST_SEARCH), (layout.number[room.player], boxes)


def room_at(solver: Solver, position: Position) -> Room:
    """The room at a position."""
    layout = solver.layout
    player, boxes = position

    def cells(bits: int) -> frozenset[Cell]:
        return frozenset(cell for i, cell in enumerate(layout.cells) if bits >> i & 1)

    return Room(
        layout.size, layout.walls, cells(solver.targets), cells(boxes), layout.cells[player]
    )


@lru_cache(maxsize=16)
def outer_walls(size: tuple[int, int]) -> frozenset[Cell]:
    rows, columns = size
    return frozenset(
        (row, column)
        for row in range(rows)
        for column in range(columns)
        if row in (0, rows - 1) or column in (0, columns - 1)
    )


def check_size(size: tuple[int, int], boxes: int) -> None:
    """Raise unless a room of this size can hold the boxes, their targets and the player."""
    rows, columns = size
    if rows < 3 or columns < 3:
        raise ConfigError(f"size is {size}; rows and columns include the outer walls: at least 3")
    inside = (rows - 2) * (columns - 2)
    if boxes < 1 or inside < 2 * boxes + 1:
        raise ConfigError(
            f"boxes is {boxes} and size {size}, which leaves {inside} cells inside the walls; "
            f"boxes, targets and player need {2 * boxes + 1}"
        )


@lru_cache(maxsize=64)
def _layout(size: tuple[int, int], walls: frozenset[Cell]) -> Layout:
    return Layout(size, walls)


@lru_cache(maxsize=32)
def _solver(layout: Layout, targets: int, depth: int) -> Solver:
    return Solver(layout, targets, depth)
