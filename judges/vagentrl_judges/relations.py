"""Relations: what a claim says of where things are, and how right that is."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from vagentrl.errors import ConfigError, JudgeError

Cell = tuple[int, int]
Range = tuple[float, float]
"""The lowest and the highest of some numbers."""
Truth = Mapping[str, Sequence[Cell]]
"""The cells of every thing of a class."""

ANY: Range = (-inf, inf)
MORE: Range = (1, inf)
LESS: Range = (-inf, -1)


@dataclass(frozen=True)
class Relation:
    """A thing is somewhere.

    Attributes:
        thing: Its class, as the state's JSON calls it.
        rows: How many rows below.
        columns: How many columns to the right.
        of: The class of the thing from which they are counted; None counts from the top left
            corner, so that they are the row and the column themselves.
    """

    thing: str
    rows: Range
    columns: Range
    of: str | None = None

    @property
    def exact(self) -> bool:
        """Whether it leaves but one cell."""
        return self.rows[0] == self.rows[1] and self.columns[0] == self.columns[1]

    @property
    def tells(self) -> bool:
        """Whether it leaves out any cell."""
        return (self.rows, self.columns) != (ANY, ANY)

    def fits(self, cell: Cell, origin: Cell) -> bool:
        """Whether it is true of a thing in a cell, counted from an origin."""
        down, right = cell[0] - origin[0], cell[1] - origin[1]
        return self.rows[0] <= down <= self.rows[1] and self.columns[0] <= right <= self.columns[1]


def at(thing: str, row: int, column: int, of: str | None = None) -> Relation:
    """The relation of a thing in one cell."""
    return Relation(thing, (row, row), (column, column), of)


class RelationParser(ABC):
    """Turns words into relations. It never sees the truth, so there is nothing to talk it into."""

    @abstractmethod
    async def parse(self, text: str, classes: Collection[str]) -> list[Relation]:
        """What a text says of where things are.

        Args:
            text: The words of the agent.
            classes: The things to look for, as the state's JSON calls them.

        Raises:
            JudgeError: When the text was not parsed. A text that says nothing is parsed.
        """

    @abstractmethod
    def identity(self) -> str:
        """What decides the relations, and so belongs in the key of a cache."""

    def metrics(self) -> Mapping[str, float]:
        """Counts and sums since the parser was made."""
        return {}


# ---------------------------------------------------------------------------------- notations


def read_state(text: str) -> Truth | None:
    """The things in a state that is written as JSON, ``{"class": [row, column]}`` or ``{"class":
    [[row, column], …]}``; None when it is not."""
    try:
        written = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict):
        return None
    things: dict[str, Sequence[Cell]] = {}
    for name, value in written.items():
        cells = [value] if _is_cell(value) else value
        if not isinstance(cells, list) or not all(map(_is_cell, cells)):
            return None
        things[name] = [(row, column) for row, column in cells]
    return things


def read_grid(text: str, symbols: Mapping[str, Sequence[str]]) -> Truth:
    """The things in a grid; `symbols` names the classes that each stands for."""
    things: dict[str, list[Cell]] = defaultdict(list)
    for row, line in enumerate(text.splitlines()):
        for column, symbol in enumerate(line.rstrip()):
            for name in symbols.get(symbol, ()):
                things[name].append((row, column))
    return things


def cells_as_relations(things: Truth, classes: Collection[str]) -> list[Relation]:
    """What says so in one relation for each thing of the classes."""
    return [
        at(name, row, column)
        for name, cells in things.items()
        if name in classes
        for row, column in cells
    ]


def _is_cell(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value)


# ------------------------------------------------------------------------------------ the score


@dataclass(frozen=True)
class ClassScore:
    """How right the relations of one class are.

    Attributes:
        there: Things of the class in the state.
        found: Those that a relation was matched with.
        credit: What these count: 1 each, or less where the relation was vague.
        wrong: Relations that are true of no thing.
    """

    there: int
    found: int
    credit: float
    wrong: int

    @property
    def f1(self) -> float:
        """Twice the credit, over the things that were said and those that are there."""
        return 2 * self.credit / (self.found + self.wrong + self.there)

    def __str__(self) -> str:
        return f"{self.f1:.2f} ({self.found} of {self.there} found, {self.wrong} wrong)"


def score(
    relations: Sequence[Relation], truth: Truth, vague_credit: float
) -> dict[str, ClassScore]:
    """How right the relations are, for every class of which there is anything to say.

    Each relation is measured from where the thing that it refers to truly is. It is exact when it
    leaves one cell and refers to the only thing of its class, and vague otherwise. Relations and
    things are matched one to one for the most credit: 1 for an exact relation, `vague_credit`
    for a vague one. What is true and left over has been said already and does not count.

    A relation that closes a circle of references (the box is left of the player, who is right of
    the box) says nothing that the others did not, and counts as wrong. One that fits every cell
    says nothing at all, and does not count.
    """
    relations = [relation for relation in relations if relation.tells]
    circular = closes_circle(relations)
    scores: dict[str, ClassScore] = {}
    for name, cells in truth.items():
        own = [
            (r, closed) for r, closed in zip(relations, circular, strict=True) if r.thing == name
        ]
        credit = np.array(
            [[_credit(r, closed, cell, truth, vague_credit) for cell in cells] for r, closed in own]
        ).reshape(len(own), len(cells))
        if credit.size or own or cells:
            scores[name] = _match(credit)
    return scores


def mean_f1(scores: Mapping[str, ClassScore], weights: Mapping[str, float]) -> float:
    """The weighted mean over classes; a class without a weight has weight 1."""
    weight = {name: weights.get(name, 1.0) for name in scores}
    total = sum(weight.values())
    if not total:
        raise JudgeError(
            f"nothing is to be judged: the state shows {sorted(scores) or 'nothing'} and the "
            f"weights are {dict(weights)}; give a class that is there a weight above 0"
        )
    return min(1.0, sum(weight[name] * scores[name].f1 for name in scores) / total)


def closes_circle(relations: Sequence[Relation]) -> list[bool]:
    """For each relation whether the thing it refers to was placed by way of its own class."""
    refers: dict[str, set[str]] = defaultdict(set)
    closed = []
    for relation in relations:
        if relation.of is None:
            closed.append(False)
            continue
        reached, queue = {relation.of}, [relation.of]
        for name in queue:  # which grows
            queue += refers[name] - reached
            reached |= refers[name]
        closed.append(relation.thing in reached)
        refers[relation.thing].add(relation.of)
    return closed


def _credit(relation: Relation, closed: bool, cell: Cell, truth: Truth, vague: float) -> float:
    """What a relation earns for a thing in a cell; negative when it is not true of it."""
    origins = [(0, 0)] if relation.of is None else truth.get(relation.of, ())
    if closed or not any(relation.fits(cell, origin) for origin in origins):
        return -1.0
    return 1.0 if relation.exact and len(origins) == 1 else vague


def _match(credit: np.ndarray) -> ClassScore:
    from scipy.optimize import linear_sum_assignment  # of the extra `judges`

    relations, things = credit.shape
    rows, columns = linear_sum_assignment(credit.clip(min=0), maximize=True)
    earned = [earned for earned in credit[rows, columns].tolist() if earned > 0]
    wrong = relations if not things else int((credit < 0).all(axis=1).sum())
    return ClassScore(things, len(earned), sum(earned), wrong)


def check_weights(weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        if not 0 <= weight < inf:
            raise ConfigError(f"weights.{name} is {weight}; give 0 or more")
