"""Sokoban rooms: what one is, how one is drawn from a seed, and how one is solved.

The floor cells of a layout are numbered in reading order; a set of boxes is an integer with one
bit per cell, and a position is `(player, boxes)`. Distances count moves, pushes included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from vagentrl.environment import is_held_out
from vagentrl.errors import ConfigError, EnvError

Cell = tuple[int, int]
Position = tuple[int, int]

DIRECTIONS: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right, as (row, column) steps."""

WALL, FLOOR, TARGET, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET = range(7)
STANDARD_SYMBOLS = "#_OX*PS"

SEARCH_LIMIT = 20_000
"""Positions after which a search back from the solution starts no further layer."""
GIVE_UP_AFTER = 50_000
"""Positions after which a search forward leaves the distance unknown."""
DRAWS = 500
"""Layouts that are drawn before a room is declared impossible."""
LONGEST_SEARCH = 250
"""Distance up to which a search back can go: a distance is kept in a byte."""
_UNSEEN, _BOX = 255, 254


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
    def held_out(self) -> bool:
        """Whether the room itself, not its seed, falls in the held-out fifth."""
        digest = hashlib.blake2b(self.grid().encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") % 5 == 0


class Layout:
    """The floor of a room and what can be reached on it."""

    def __init__(self, size: tuple[int, int], walls: frozenset[Cell]) -> None:
        self.size = size
        self.walls = walls
        rows, columns = size
        self.cells: tuple[Cell, ...] = tuple(
            (row, column)
            for row in range(rows)
            for column in range(columns)
            if (row, column) not in walls
        )
        self.number = {cell: number for number, cell in enumerate(self.cells)}

    @cached_property
    def steps(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """For each cell, the moves from it: `(direction, cell ahead, the one after or -1)`."""
        return tuple(
            tuple(
                (direction, ahead, self._beside(self.cells[ahead], direction))
                for direction in range(4)
                if (ahead := self._beside(cell, direction)) >= 0
            )
            for cell in self.cells
        )

    @cached_property
    def back_steps(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each cell, where a move to it comes from: `(cell behind, bit of the one ahead)`."""
        return tuple(
            tuple(
                (behind, 1 << ahead if (ahead := self._beside(cell, direction)) >= 0 else 0)
                for direction in range(4)
                if (behind := self._beside(cell, direction ^ 1)) >= 0
            )
            for cell in self.cells
        )

    def connected(self) -> bool:
        """Whether every floor cell can be walked to from every other."""
        seen, frontier = {0}, [0]
        while frontier:
            fresh = {ahead for cell in frontier for _, ahead, _ in self.steps[cell]} - seen
            seen |= fresh
            frontier = list(fresh)
        return len(seen) == len(self.cells)

    def _beside(self, cell: Cell, direction: int) -> int:
        down, right = DIRECTIONS[direction]
        return self.number.get((cell[0] + down, cell[1] + right), -1)


class Solver:
    """Exact distances to the solution of one layout with its targets.

    It searches back from all solved positions, layer by layer, so that whatever it has seen has
    its exact distance. Positions beyond that are searched forward until they meet it.

    Args:
        layout: The floor.
        targets: Where the boxes belong, as bits.
        depth: Distance up to which to search back.
    """

    def __init__(self, layout: Layout, targets: int, depth: int) -> None:
        self.layout = layout
        self.targets = targets
        self._distances: dict[int, bytearray] = {}
        solved = self._row(targets)
        players = [cell for cell, value in enumerate(solved) if value == _UNSEEN]
        for player in players:
            solved[player] = 0
        self.layers: list[list[Position]] = [[(player, targets) for player in players]]
        seen = len(players)
        while (
            self.layers[-1]
            and len(self.layers) <= min(depth, LONGEST_SEARCH)
            and seen < SEARCH_LIMIT
        ):
            self.layers.append(self._layer_before(self.layers[-1], len(self.layers)))
            seen += len(self.layers[-1])

    def distance(self, position: Position) -> int | None:
        """Moves to the solution; None where there is none (or too far to tell)."""
        known = self._known(position)
        if known is not None:
            return known
        found = self._forward(position)
        return None if found is None else len(found[0]) + self._distances[found[1][1]][found[1][0]]

    def moves(self, position: Position) -> Iterator[tuple[int, Position]]:
        """The positions one move away that differ from this one, with their direction."""
        player, boxes = position
        for direction, ahead, beyond in self.layout.steps[player]:
            bit = 1 << ahead
            if not boxes & bit:
                yield direction, (ahead, boxes)
            elif beyond >= 0 and not boxes >> beyond & 1:
                yield direction, (ahead, boxes ^ bit | 1 << beyond)

    def move(self, position: Position, direction: int) -> Position | None:
        """The position after a move; None where something is in the way."""
        return next((after for way, after in self.moves(position) if way == direction), None)

    def plan(self, position: Position) -> list[int] | None:
        """Directions of a shortest solution; None where there is none (or too far to tell)."""
        found = ([], position) if self._known(position) is not None else self._forward(position)
        if found is None:
            return None
        path, position = found
        while left := self._known(position):
            direction, position = next(
                move for move in self.moves(position) if self._known(move[1]) == left - 1
            )
            path.append(direction)
        return path

    def _forward(self, start: Position) -> tuple[list[int], Position] | None:
        """The path to the nearest known position, breadth first, and that position.

        All positions up to the depth of the search back are known, so the first one met lies on a
        shortest solution.
        """
        if start[1] & ~self._alive:
            return None
        came_from: dict[Position, tuple[int, Position] | None] = {start: None}
        frontier = [start]
        while frontier and len(came_from) < GIVE_UP_AFTER:
            fresh = []
            for position in frontier:
                for direction, following in self.moves(position):
                    if following in came_from or following[1] & ~self._alive:
                        continue
                    came_from[following] = (direction, position)
                    if self._known(following) is not None:
                        return self._trace(following, came_from), following
                    fresh.append(following)
            frontier = fresh
        return None

    def _trace(
        self, end: Position, came_from: dict[Position, tuple[int, Position] | None]
    ) -> list[int]:
        path = []
        while (step := came_from[end]) is not None:
            direction, end = step
            path.append(direction)
        return path[::-1]

    def _known(self, position: Position) -> int | None:
        row = self._distances.get(position[1])
        if row is None or row[position[0]] >= _BOX:
            return None
        return row[position[0]]

    def _row(self, boxes: int) -> bytearray:
        """The distances, by the player's cell, for these boxes."""
        row = bytearray([_UNSEEN]) * len(self.layout.cells)
        for cell in range(len(row)):
            if boxes >> cell & 1:
                row[cell] = _BOX
        self._distances[boxes] = row
        return row

    def _layer_before(self, layer: list[Position], depth: int) -> list[Position]:
        """The unseen positions from which one move leads into the layer."""
        back_steps, distances = self.layout.back_steps, self._distances
        before: list[Position] = []
        for player, boxes in layer:
            row = distances[boxes]
            for behind, ahead in back_steps[player]:
                here = row[behind]
                if here == _BOX:
                    continue
                if here == _UNSEEN:
                    row[behind] = depth
                    before.append((behind, boxes))
                if boxes & ahead:  # the move may have pushed the box ahead away from here
                    pulled = boxes ^ ahead | 1 << player
                    other = distances.get(pulled)
                    if other is None:
                        other = self._row(pulled)
                    if other[behind] == _UNSEEN:
                        other[behind] = depth
                        before.append((behind, pulled))
        return before

    @cached_property
    def _alive(self) -> int:
        """The cells, as bits, from which a lone box can be pushed to some target."""
        alive = self.targets
        frontier = [cell for cell in range(len(self.layout.cells)) if self.targets >> cell & 1]
        while frontier:
            cell = frontier.pop()
            # pulled from `cell` to `nearer`, by a player who steps back to `further`
            for _, nearer, further in self.layout.steps[cell]:
                if further >= 0 and not alive >> nearer & 1:
                    alive |= 1 << nearer
                    frontier.append(nearer)
        return alive


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
        boxes on a target already are equally likely. A room is in the held-out fifth of all rooms
        if and only if its seed is held out, so that no room is ever trained on and tested on.
        """
        rng = np.random.Generator(np.random.PCG64(seed))
        for _ in range(DRAWS):
            walls = self._walls(rng)
            layout = _layout(self.size, walls)
            if not layout.connected() or len(layout.cells) < 2 * self.boxes + 1:
                continue
            targets = rng.permutation(len(layout.cells))[: self.boxes].tolist()
            solver = _solver(layout, sum(1 << target for target in targets), self.max_solution)
            starts = self._starts(solver)
            for choice in rng.integers(len(starts), size=8).tolist() if starts else ():
                if room_at(solver, starts[choice]).held_out == is_held_out(seed):
                    return solver, starts[choice]
        raise EnvError(
            f"no room of size {self.size} with boxes {self.boxes}, inner_walls {self.inner_walls} "
            f"and a shortest solution of {self.min_solution} to {self.max_solution} moves in "
            f"{DRAWS} layouts (seed {seed}, {'' if is_held_out(seed) else 'not '}held out); "
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
