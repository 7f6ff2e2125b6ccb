"""An exact Sokoban solver: distances and shortest plans, counted in moves.

The floor cells of a layout are numbered in reading order; a set of boxes is an integer with one
bit per cell, and a position is `(player, boxes)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

Cell = tuple[int, int]
Position = tuple[int, int]

DIRECTIONS: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right, as (row, column) steps."""

SEARCH_LIMIT = 60_000
"""Number of positions after which a backward search starts no further layer."""
GIVE_UP_AFTER = 50_000
"""Number of positions after which a forward search leaves the distance unknown."""
LONGEST_SEARCH = 250
"""Maximum distance of a backward search; distances are stored in a byte."""
_UNSEEN, _BOX = 255, 254


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

    A backward search from all solved positions, layer by layer, gives the exact distance of every
    position it visits. For any other position, a forward search runs until it meets one of them.

    Args:
        layout: The floor.
        targets: Cells of the targets, as bits.
        depth: Maximum distance of the backward search.
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
        """Return the moves to the solution; None if there is none or it is too far to find."""
        known = self._known(position)
        if known is not None:
            return known
        found = self._forward(position)
        return None if found is None else len(found[0]) + self._distances[found[1][1]][found[1][0]]

    def moves(self, position: Position) -> Iterator[tuple[int, Position]]:
        """Yield the direction and the resulting position of every move that changes something."""
        player, boxes = position
        for direction, ahead, beyond in self.layout.steps[player]:
            bit = 1 << ahead
            if not boxes & bit:
                yield direction, (ahead, boxes)
            elif beyond >= 0 and not boxes >> beyond & 1:
                yield direction, (ahead, boxes ^ bit | 1 << beyond)

    def move(self, position: Position, direction: int) -> Position | None:
        """Return the position after a move; None if a wall or a box blocks it."""
        return next((after for way, after in self.moves(position) if way == direction), None)

    def plan(self, position: Position) -> list[int] | None:
        """Return a shortest solution's directions; None if there is none or it is too far."""
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
        """Search breadth first for a known position; return the path to it and the position.

        All positions up to the depth of the backward search are known, so the first known position
        lies on a shortest solution.
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
        """Add and return the table of distances for these boxes, indexed by the player's cell."""
        row = bytearray([_UNSEEN]) * len(self.layout.cells)
        for cell in range(len(row)):
            if boxes >> cell & 1:
                row[cell] = _BOX
        self._distances[boxes] = row
        return row

    def _layer_before(self, layer: list[Position], depth: int) -> list[Position]:
        """Return the unvisited positions from which one move leads into the layer."""
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
                if boxes & ahead:  # the move may have pushed this box from the player's cell
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
        """The cells, as bits, from which a single box can be pushed to some target."""
        alive = self.targets
        frontier = [cell for cell in range(len(self.layout.cells)) if self.targets >> cell & 1]
        while frontier:
            cell = frontier.pop()
            # Reversed push: the box is pulled from `cell` to `nearer`, and the player steps back
            # to `further`.
            for _, nearer, further in self.layout.steps[cell]:
                if further >= 0 and not alive >> nearer & 1:
                    alive |= 1 << nearer
                    frontier.append(nearer)
        return alive
