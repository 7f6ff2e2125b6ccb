"""How many moves a level of Baba Is AI still takes, estimated for its search."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from vagentrl_envs.baba.game import (
    IS,
    NOUNS,
    TEXT_KINDS,
    Room,
    Rules,
    State,
    bits,
    property_text,
    shifted,
)

NEVER = 10_000
"""The estimate for a state that cannot be won."""

Places = list[list[int]]
"""For each kind of thing, the numbers of the cells that it is in."""


class Sight(NamedTuple):
    """What the estimate looks at in a state.

    Attributes:
        places: Where the things are.
        rules: The rules that hold.
        you: Numbers of the cells of YOU.
        touched: Bitboard of the cells that YOU can come to or touch, if no text were in the way.
        keys: Numbers of the cells of the blocks of the rules that stop YOU.
        fixed: Bitboard of the text blocks that nothing can move.
        upright: Bitboard of the text blocks that can be pushed up or down, if nothing is near.
        sideways: Bitboard of those that can be pushed to the left or right.
    """

    places: Places
    rules: Rules
    you: list[int]
    touched: int
    keys: list[int]
    fixed: int
    upright: int
    sideways: int


class Sentence(NamedTuple):
    """How a sentence can be put together.

    Attributes:
        pushes: Number of moves from the first push to the last.
        last: Moves from there to the objects of its noun.
        starts: Numbers of the cells to start pushing from.
    """

    pushes: int
    last: int
    starts: list[int]


_IMPOSSIBLE = Sentence(NEVER, 0, [])


class Estimate:
    """Estimates the moves that are left from where the text blocks and the objects are.

    It counts the way to what has to be pushed, the pushes that put a sentence together, and the
    way to what wins. It ignores most of what is in the way, so it is mostly too small. It is too
    large in rare positions in which one block pushes another.
    """

    def __init__(self, room: Room) -> None:
        cells = [divmod(number, room.columns) for number in range(room.rows * room.columns)]
        self.room = room
        self.far = [[abs(r - s) + abs(c - d) for s, d in cells] for r, c in cells]
        """Number of moves between two cells of the empty room."""
        rows, columns = range(1, room.rows - 1), range(1, room.columns - 1)
        self.ends = sum(room.bit((row, column)) for row in (1, rows[-1]) for column in columns)
        self.sides = sum(room.bit((row, column)) for row in rows for column in (1, columns[-1]))

    def __call__(self, state: State, rules: Rules) -> int:
        """Return the estimate, or `NEVER` if there is nothing left to win with."""
        sight = self._look(state, rules)
        present = [noun for noun in range(len(NOUNS)) if sight.places[noun]]
        winners = [
            (n, None if n in rules.win else self._sentence(sight, n, "win")) for n in present
        ]
        actors = [(n, None if n in rules.you else self._sentence(sight, n, "you")) for n in present]
        return min(
            (
                self._left(sight, *actor, *winner)
                for actor, winner in product(actors, winners)
                if actor[1] is not _IMPOSSIBLE and winner[1] is not _IMPOSSIBLE
            ),
            default=NEVER,
        )

    def _left(
        self,
        sight: Sight,
        actor: int,
        acting: Sentence | None,
        winner: int,
        winning: Sentence | None,
    ) -> int:
        """Estimate the moves until an object of one noun enters the cell of one that wins.

        Args:
            sight: The state.
            actor: The noun that is to be YOU.
            acting: The sentence that says so; None if it is said.
            winner: The noun that is to be WIN.
            winning: The sentence that says so; None if it is said.
        """
        places = sight.places
        if acting is None and winning is None:
            return self._approach(sight, places[winner])
        travel = self._between(places[actor], places[winner])
        if acting is None and winning is not None:
            left = self._approach(sight, winning.starts) + winning.pushes + winning.last
            return max(travel, left)
        left = 0
        if acting is not None:
            left = self._approach(sight, acting.starts) + acting.pushes
        return left + max(travel, 0 if winning is None else winning.pushes + winning.last)

    def _sentence(self, sight: Sight, noun: int, name: str) -> Sentence:
        """Return the cheapest way to say that a noun is something."""
        best = _IMPOSSIBLE
        places, objects = sight.places, sight.places[noun]
        nouns, ends = places[len(NOUNS) + noun], places[property_text(name)]
        for middle in places[IS] if nouns and ends else []:
            last = max(0, self._between([middle], objects) - 3)
            for one, end, unit in product(nouns, ends, (1, self.room.columns)):
                least = last + max(self.far[one + unit][middle], self.far[middle + unit][end])
                if least < best.pushes + best.last:
                    pushes, starts = self._pushes(sight, one, middle, end, unit)
                    if pushes + last < best.pushes + best.last:
                        best = Sentence(pushes, last, starts)
        return best

    def _pushes(
        self, sight: Sight, one: int, middle: int, end: int, unit: int
    ) -> tuple[int, list[int]]:
        """Return the pushes that put three blocks in a row, and where to start pushing."""
        fixed = sight.fixed
        if middle + unit != end and fixed >> end & 1 and fixed >> end - unit & 1:
            return NEVER, []  # the place before the last block is taken for good
        noun, verb = self._way(one + unit, middle), self._way(middle + unit, end)
        if not self._possible(sight, one, middle, *noun):
            return NEVER, []
        if not self._possible(sight, middle, end, *verb):
            return NEVER, []
        if middle + unit == end:
            down, right = noun
            starts = [one - self.room.columns if down > 0 else one + self.room.columns] * bool(down)
            starts += [one - 1 if right > 0 else one + 1] * bool(right)
            around = 2 * bool(down and right)  # around the corner of the block
            return abs(down) + abs(right) + around, starts
        starts = [place + offset for place in (one, middle, end) for offset in self.room.offsets]
        if fixed >> end & 1:
            return self.far[middle][end - unit] + self.far[one][end - 2 * unit], starts
        return self.far[one + unit][middle] + self.far[middle + unit][end], starts

    def _possible(self, sight: Sight, one: int, other: int, down: int, right: int) -> bool:
        """Return whether one of two blocks can be pushed in each direction that is needed."""
        both = 1 << one | 1 << other
        return bool((not down or sight.upright & both) and (not right or sight.sideways & both))

    def _way(self, start: int, end: int) -> tuple[int, int]:
        columns = self.room.columns
        return end // columns - start // columns, end % columns - start % columns

    def _approach(self, sight: Sight, goals: list[int]) -> int:
        """Return the moves to the nearest goal.

        Where something that stops is in between, a block of the rule that says so has to be pushed
        first.
        """
        if not goals:
            return NEVER
        if any(sight.touched >> goal & 1 for goal in goals):
            return self._between(sight.you, goals)
        return min(
            (self._between(sight.you, [k]) + self._between([k], goals) - 1 for k in sight.keys),
            default=NEVER,
        )

    def _look(self, state: State, rules: Rules) -> Sight:
        room = self.room
        places = [list(bits(board)) for board in state]
        stops = [noun for noun in rules.stop if noun not in rules.push]
        free = room.inside & ~room.board(state, stops)
        you = seen = room.board(state, rules.you)
        while True:
            touched = seen
            for offset in room.offsets:
                touched |= shifted(seen, offset)
            if touched & free | seen == seen:
                break
            seen |= touched & free
        keys = [place for noun in stops for place in places[len(NOUNS) + noun]]
        if stops:
            keys += places[IS] + places[property_text("stop")]
        text = 0
        for kind in TEXT_KINDS:
            text |= state[kind]
        fixed = text & self.ends & self.sides
        while more := text & ~fixed & self._beside(fixed):
            fixed |= more
        free_text = text & ~fixed
        return Sight(
            places, rules, list(bits(you)), touched, keys, fixed,
            free_text & ~self.ends, free_text & ~self.sides,
        )  # fmt: skip

    def _beside(self, fixed: int) -> int:
        """Return the cells along the border beside blocks that cannot be moved."""
        columns = self.room.columns
        ends, sides = fixed & self.ends, fixed & self.sides
        return (ends << 1 | ends >> 1) & self.ends | (
            (sides << columns | sides >> columns) & self.sides
        )

    def _between(self, some: list[int], others: list[int]) -> int:
        return min((self.far[one][other] for one in some for other in others), default=NEVER)
