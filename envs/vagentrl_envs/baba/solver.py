"""Short solutions of Baba Is AI levels, found by A* search.

One step of the search walks to a block and pushes it, for walking changes nothing but where the
agent is. The estimate that guides the search has some more weight than the moves already made, so a
solution is short but not always the shortest.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from vagentrl.errors import EnvError
from vagentrl_envs.baba.estimate import NEVER, Estimate
from vagentrl_envs.baba.game import Room, Rules, State, bits, shifted

SEARCH_LIMIT = 50_000
"""Number of states after which a search gives up."""
GREED = 1.5
"""Weight of the estimate; 1 finds slightly shorter solutions and takes several times as long."""


class Move(NamedTuple):
    """A walk and the move that follows it.

    Attributes:
        before: The state in which the walk starts.
        cell: Number of the cell that the walk ends in; None for no walk.
        direction: Number of the move's direction; None if the walk itself wins.
    """

    before: State
    cell: int | None
    direction: int | None


class SearchLimit(EnvError):
    """The search found neither a solution nor that there is none."""


@lru_cache(maxsize=2048)
def solve(room: Room, state: State, limit: int = SEARCH_LIMIT) -> tuple[int, ...] | None:
    """Return the directions of a short solution; None if there is none.

    Args:
        room: The room.
        state: The state to start from.
        limit: Number of states after which the search gives up.

    Raises:
        SearchLimit: When the search gives up.
    """
    rules = room.rules(state)
    you = room.board(state, rules.you)
    if not you:
        return None
    if you & room.board(state, rules.win):
        return ()
    return _Search(room, state, limit).run()


@lru_cache(maxsize=8)
def _estimate(room: Room) -> Estimate:
    return Estimate(room)


class _Search:
    def __init__(self, room: Room, start: State, limit: int) -> None:
        self.room = room
        self.limit = limit
        self.estimate = _estimate(room)
        self.moves: dict[State, Move | None] = {}
        self.costs: dict[State, int] = {}
        self.queue: list[tuple[float, int, int, State]] = []
        self.numbers = count()
        self.best: tuple[int, Move] | None = None
        self._add(start, 0, None)

    def run(self) -> tuple[int, ...] | None:
        while self.queue:
            bound, _, cost, state = heappop(self.queue)
            if self.best is not None and bound >= self.best[0]:
                break
            if cost > self.costs[state]:
                continue
            if len(self.costs) > self.limit:
                raise SearchLimit(
                    f"a search for the solution of a Baba level has seen {len(self.costs)} states "
                    f"and found none; its search_limit is {self.limit}: raise it, or choose tasks "
                    "with one room"
                )
            self._expand(state, cost)
        return None if self.best is None else self._plan(self.best[1])

    def _expand(self, state: State, cost: int) -> None:
        """Add the states that one push leads to, and note how to win from here."""
        rules = self.room.rules(state)
        you = self.room.board(state, rules.you)
        if you & (you - 1) or set(rules.you) & set(rules.push):
            for direction in range(4):  # several things move at once: no walks
                self._try(state, cost + 1, Move(state, None, direction))
        else:
            self._walk(state, rules, you, cost)

    def _walk(self, state: State, rules: Rules, you: int, cost: int) -> None:
        """Try each push in reach, and the nearest WIN."""
        room = self.room
        pushable = room.pushable(state, rules)
        blocked = [room.blocked(state, rules, pushable, offset) for offset in room.offsets]
        win, defeat = room.board(state, rules.win), room.board(state, rules.defeat)
        seen = frontier = you
        while frontier:
            if winning := frontier & win:
                self._win(cost, Move(state, next(bits(winning)), None))
                return
            following = 0
            for direction, offset in enumerate(room.offsets):
                ahead = shifted(frontier, offset) & ~blocked[direction]
                following |= ahead & ~pushable
                for cell in bits(ahead & pushable):
                    here = cell - offset
                    boards = list(state)
                    for noun in rules.you:
                        boards[noun] = 1 << here if state[noun] else 0
                    self._try(tuple(boards), cost + 1, Move(state, here, direction))
            cost += 1
            frontier = following & ~seen & ~defeat
            seen |= frontier

    def _try(self, state: State, cost: int, move: Move) -> None:
        if move.direction is None:
            return
        step = self.room.step(state, move.direction)
        if step.won:
            self._win(cost, move)
        elif not step.lost and step.state != state:
            self._add(step.state, cost, move)

    def _win(self, cost: int, move: Move) -> None:
        if self.best is None or cost < self.best[0]:
            self.best = cost, move

    def _add(self, state: State, cost: int, move: Move | None) -> None:
        if cost >= self.costs.get(state, NEVER):
            return
        left = self.estimate(state, self.room.rules(state))
        if left < NEVER:
            self.costs[state] = cost
            self.moves[state] = move
            heappush(self.queue, (cost + GREED * left, next(self.numbers), cost, state))

    def _plan(self, last: Move) -> tuple[int, ...]:
        plan: list[int] = []
        move: Move | None = last
        while move is not None:
            if move.direction is not None:
                plan.append(move.direction)
            if move.cell is not None:
                plan += self._path(move.before, move.cell)
            move = self.moves[move.before]
        return tuple(plan[::-1])

    def _path(self, state: State, cell: int) -> list[int]:
        """Return the directions of a shortest walk to a cell, from the last to the first."""
        room = self.room
        rules = room.rules(state)
        closed = room.blocked(state, rules, 0, 1) | room.pushable(state, rules)
        closed |= room.board(state, rules.defeat)
        layers = [room.board(state, rules.you)]
        seen = layers[0]
        while not layers[-1] >> cell & 1:
            following = 0
            for offset in room.offsets:
                following |= shifted(layers[-1], offset)
            layers.append(following & ~closed & ~seen)
            seen |= layers[-1]
        path: list[int] = []
        for layer in layers[-2::-1]:
            direction = next(d for d in range(4) if layer >> cell - room.offsets[d] & 1)
            cell -= room.offsets[direction]
            path.append(direction)
        return path
