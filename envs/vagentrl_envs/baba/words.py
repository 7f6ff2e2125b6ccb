"""Levels of Baba Is AI in words and symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vagentrl_envs.baba.game import KINDS, NOUNS, WORDS, Cell, Room, State, bits
from vagentrl_envs.baba.sprites import ORDER

SYMBOLS = "@wokdBWOKD=Y!PSX"
"""A symbol for each kind, in the order of the kinds."""
FLOOR, BORDER = "_", "#"

NAMES = tuple(
    word if kind < len(NOUNS) else f"text {word.upper()}" for kind, word in enumerate(WORDS)
)
"""What a thing of each kind is called."""


def legend() -> str:
    """Name what each symbol stands for."""
    pairs = zip(SYMBOLS, NAMES, strict=True)
    return ", ".join([f"{BORDER} border, {FLOOR} floor", *(f"{s} {name}" for s, name in pairs)])


def grid(room: Room, board: State) -> str:
    """Write a level with one symbol for each cell.

    A cell shows the topmost of the things in it; a line at the end names each of the others, such
    as ``o below row 3, column 4``.
    """
    lines = [
        [FLOOR if room.inside & room.bit((r, c)) else BORDER for c in range(room.columns)]
        for r in range(room.rows)
    ]
    below = []
    for kind in reversed(ORDER):
        for row, column in room.cells(board[kind]):
            if lines[row][column] == FLOOR:
                lines[row][column] = SYMBOLS[kind]
            else:
                below.append(f"{SYMBOLS[kind]} below row {row}, column {column}")
    return "\n".join(["".join(line) for line in lines] + sorted(below))


def named(room: Room, board: State) -> dict[str, list[Cell]]:
    """Return the cells of all things by name."""
    return {NAMES[kind]: room.cells(board[kind]) for kind in range(KINDS) if board[kind]}


def in_words(rules: Sequence[str], places: Mapping[str, Sequence[Cell]]) -> str:
    """Say which rules hold and where everything is."""
    said = [
        f"{name} is at " + " and ".join(f"row {row}, column {column}" for row, column in cells)
        for name, cells in places.items()
    ]
    return "; ".join([f"the rules are {', '.join(rules) or 'none'}", *said])


def seen_from_you(room: Room, board: State) -> str:
    """Say which rules hold and where everything is, seen from the first YOU in reading order."""
    rules = room.rules(board)
    lines = [f"Rules: {'; '.join(rules.sentences()) or 'none'}"]
    you = room.board(board, rules.you)
    if not you:
        return "\n".join([*lines, "Nothing is YOU."])
    here = next(bits(you))
    row, column = divmod(here, room.columns)
    mine = [noun for noun in rules.you if board[noun] >> here & 1]
    lines.append(f"You: {', '.join(NOUNS[noun] for noun in mine)}")
    for kind in range(KINDS):
        others = board[kind] & ~(1 << here if kind in mine else 0)
        ways = [_way(r - row, c - column) for r, c in room.cells(others)]
        if ways:
            lines.append(f"{NAMES[kind]}: {', '.join(ways)}")
    return "\n".join(lines)


def _way(down: int, right: int) -> str:
    across = [f"{abs(right)} {'right' if right > 0 else 'left'}"] * bool(right)
    along = [f"{abs(down)} {'down' if down > 0 else 'up'}"] * bool(down)
    return " ".join(across + along) or "here"


def read(text: str, symbols: str = SYMBOLS) -> tuple[Room, State]:
    """Read a level from lines of symbols, as `grid` writes it without things below others."""
    lines = text.split("\n")
    room = Room(len(lines), len(lines[0]))
    boards = [0] * KINDS
    for row, line in enumerate(lines):
        for column, symbol in enumerate(line):
            if symbol in symbols:
                boards[symbols.index(symbol)] |= room.bit((row, column))
    return room, tuple(boards)


EXAMPLE = read("########\n#K=!___#\n#______#\n#_@____#\n#____k_#\n#______#\n#B=Y___#\n########")[1]
"""A level with one room, for descriptions."""
