"""The rules of Baba Is AI: what things are on the board, which rules hold, what a move does.

A state is a tuple of bitboards, one for each kind of thing, with one bit for each cell: the cell in
row ``r`` and column ``c`` of a room with ``columns`` columns is bit ``r * columns + c``. Things of
different kinds may share a cell; two things of the same kind in one cell are one thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

State = tuple[int, ...]
"""A bitboard for each kind: the objects, the text blocks of nouns, IS, those of properties."""
Cell = tuple[int, int]
"""Row and column, counted from 0 at the top left corner, with the border."""

NOUNS = ("baba", "wall", "ball", "key", "door")
PROPERTIES = ("you", "win", "push", "stop", "defeat")
IS = 2 * len(NOUNS)
KINDS = len(NOUNS) + len(NOUNS) + 1 + len(PROPERTIES)
TEXT_KINDS = range(len(NOUNS), KINDS)
WORDS = (*NOUNS, *NOUNS, "is", *PROPERTIES)
"""The word of each kind: the name of an object, or what a text block says."""

DIRECTIONS = ("up", "right", "down", "left")


def noun_text(noun: str) -> int:
    """Return the kind of the text block of a noun."""
    return len(NOUNS) + NOUNS.index(noun)


def property_text(name: str) -> int:
    """Return the kind of the text block of a property."""
    return IS + 1 + PROPERTIES.index(name)


class Rules(NamedTuple):
    """The rules that hold; nouns are numbered as in `NOUNS`.

    Attributes:
        you: Nouns whose objects the agent moves.
        win: Nouns whose objects win when a YOU is in their cell.
        push: Nouns whose objects can be pushed; text always can.
        stop: Nouns whose objects nothing can enter. PUSH overrules STOP.
        defeat: Nouns whose objects destroy each YOU in their cell.
        becomes: Pairs of nouns: every object of the first becomes one of the second.
    """

    you: tuple[int, ...]
    win: tuple[int, ...]
    push: tuple[int, ...]
    stop: tuple[int, ...]
    defeat: tuple[int, ...]
    becomes: tuple[tuple[int, int], ...]

    def sentences(self) -> tuple[str, ...]:
        """The rules in words, such as ``baba is you``."""
        properties = (self.you, self.win, self.push, self.stop, self.defeat)
        said = [
            f"{NOUNS[noun]} is {name}"
            for name, nouns in zip(PROPERTIES, properties, strict=True)
            for noun in nouns
        ]
        return (*said, *(f"{NOUNS[one]} is {NOUNS[other]}" for one, other in self.becomes))


class Step(NamedTuple):
    """What a move led to.

    Attributes:
        state: The state after the move.
        won: Whether a YOU is in the cell of a WIN.
        lost: Whether nothing is YOU any more.
        defeated: Whether a YOU was destroyed.
    """

    state: State
    won: bool
    lost: bool
    defeated: bool


class Room:
    """An empty room, whose border cannot be entered, and the moves of things in it.

    Args:
        rows: Rows, the border included.
        columns: Columns, the border included.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns
        self.offsets = (-columns, 1, columns, -1)
        """How far a bit moves in each of `DIRECTIONS`."""
        self.inside = sum(
            1 << row * columns + column
            for row in range(1, rows - 1)
            for column in range(1, columns - 1)
        )
        self.border = ((1 << rows * columns) - 1) & ~self.inside

    def bit(self, cell: Cell) -> int:
        """Return the bitboard of one cell."""
        return 1 << cell[0] * self.columns + cell[1]

    def cells(self, board: int) -> list[Cell]:
        """Return the cells of a bitboard in reading order."""
        return [divmod(number, self.columns) for number in bits(board)]

    def rules(self, state: State) -> Rules:
        """Read the rules: NOUN IS PROPERTY or NOUN IS NOUN, to the right or downwards."""
        return _rules(state[len(NOUNS) :], self.columns)

    def board(self, state: State, nouns: Iterable[int]) -> int:
        """Return the cells with an object of one of the nouns."""
        found = 0
        for noun in nouns:
            found |= state[noun]
        return found

    def pushable(self, state: State, rules: Rules) -> int:
        """Return the cells with something that can be pushed."""
        found = self.board(state, rules.push)
        for kind in TEXT_KINDS:
            found |= state[kind]
        return found

    def blocked(self, state: State, rules: Rules, pushable: int, offset: int) -> int:
        """Return the cells that nothing can enter in one direction.

        They hold something that stops, or something that would have to be pushed into such a cell.
        """
        stops = (noun for noun in rules.stop if noun not in rules.push)
        found = self.border | self.board(state, stops)
        while more := pushable & shifted(found, -offset) & ~found:
            found |= more
        return found

    def step(self, state: State, direction: int) -> Step:
        """Move every YOU one cell in one of `DIRECTIONS`.

        The rules that hold before the move decide what moves. Then the rules are read again:
        objects become others, a YOU in the cell of a DEFEAT is destroyed, and a YOU in the cell of
        a WIN wins.
        """
        rules = self.rules(state)
        offset = self.offsets[direction]
        pushable = self.pushable(state, rules)
        blocked = self.blocked(state, rules, pushable, offset)
        walking = self.board(state, rules.you) & ~shifted(blocked, -offset)
        pushed = shifted(walking, offset) & pushable
        while more := shifted(pushed, offset) & pushable & ~pushed:
            pushed |= more
        boards = list(state)
        for kind, board in enumerate(state):
            moving = board & walking if kind in rules.you else 0
            if kind >= len(NOUNS) or kind in rules.push:
                moving |= board & pushed
            if moving:
                boards[kind] = board & ~moving | shifted(moving, offset)
        return self._settle(boards)

    def _settle(self, boards: list[int]) -> Step:
        rules = self.rules(tuple(boards))
        lasting = {one for one, other in rules.becomes if one == other}  # KEY IS KEY protects keys
        changes = [pair for pair in rules.becomes if pair[0] not in lasting]
        before = list(boards)
        for one, _ in changes:
            boards[one] = 0
        for one, other in changes:
            boards[other] |= before[one]
        doomed = self.board(tuple(boards), rules.you) & self.board(tuple(boards), rules.defeat)
        for noun in rules.you:
            boards[noun] &= ~doomed
        state = tuple(boards)
        you = self.board(state, rules.you)
        won = bool(you & self.board(state, rules.win))
        return Step(state, won, lost=not you, defeated=bool(doomed))


def shifted(board: int, offset: int) -> int:
    """Return a bitboard with every bit moved by an offset."""
    return board << offset if offset > 0 else board >> -offset


def bits(board: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, from the lowest."""
    while board:
        lowest = board & -board
        yield lowest.bit_length() - 1
        board ^= lowest


@lru_cache(maxsize=1 << 14)
def _rules(text: State, columns: int) -> Rules:
    """Read the rules from the bitboards of the text blocks."""
    middle = text[len(NOUNS)]
    properties: list[list[int]] = [[] for _ in PROPERTIES]
    becomes: list[tuple[int, int]] = []
    for noun in range(len(NOUNS)):
        across = (text[noun] << 1 & middle) << 1
        down = (text[noun] << columns & middle) << columns
        if not across | down:
            continue
        ends = across | down
        for number, having in enumerate(properties):
            if ends & text[len(NOUNS) + 1 + number]:
                having.append(noun)
        becomes += [(noun, other) for other in range(len(NOUNS)) if ends & text[other]]
    you, win, push, stop, defeat = map(tuple, properties)
    return Rules(you, win, push, stop, defeat, tuple(becomes))
