"""Relations: a claim's statements about the positions of objects, and their score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from vagentrl.claims.reading import grid_rows, read_json
from vagentrl.errors import ConfigError, JudgeError

Cell = tuple[int, int]
Range = tuple[float, float]
"""The lowest and the highest allowed number, inclusive."""
Truth = Mapping[str, Sequence[Cell]]
"""The cells of all objects of each class."""

ANY: Range = (-inf, inf)
MORE: Range = (1, inf)
LESS: Range = (-inf, -1)


@dataclass(frozen=True)
class Relation:
    """A statement that an object is at a position, or in a range of positions.

    Attributes:
        thing: The object's class, as named in the state's JSON.
        rows: Number of rows below the origin.
        columns: Number of columns to the right of the origin.
        of: Class of the object that is the origin; None for the top left corner, so that `rows`
            and `columns` are the row and the column.
    """

    thing: str
    rows: Range
    columns: Range
    of: str | None = None

    @property
    def exact(self) -> bool:
        """Whether the relation allows exactly one cell."""
        return self.rows[0] == self.rows[1] and self.columns[0] == self.columns[1]

    @property
    def is_informative(self) -> bool:
        """Whether the relation excludes any cell."""
        return (self.rows, self.columns) != (ANY, ANY)

    def fits(self, cell: Cell, origin: Cell) -> bool:
        """Whether the relation is true of an object in a cell, for this cell of the origin."""
        down, right = cell[0] - origin[0], cell[1] - origin[1]
        return self.rows[0] <= down <= self.rows[1] and self.columns[0] <= right <= self.columns[1]


def at(thing: str, row: int, column: int, of: str | None = None) -> Relation:
    """Return the relation of an object in exactly one cell."""
    return Relation(thing, (row, row), (column, column), of)


class RelationParser(ABC):
    """Extracts relations from text, without access to the truth.

    A text that manipulates the parser can only change the relations, which are then scored
    against the truth.
    """

    @abstractmethod
    async def parse(self, text: str, classes: Collection[str]) -> list[Relation]:
        """Extract the relations from a text.

        Args:
            text: The agent's claim in words.
            classes: Classes of objects to look for, as named in the state's JSON.

        Raises:
            JudgeError: When the parser fails. A text without relations is not a failure.
        """

    @abstractmethod
    def identity(self) -> str:
        """Return a text with all settings that affect parsing; it is part of a cache's key."""

    async def probe(self) -> None:  # noqa: B027 (most parsers have no endpoint)
        """Ask the parser's endpoint, if it has one, whether it answers.

        Raises:
            JudgeError: When it does not.
        """

    def metrics(self) -> Mapping[str, float]:
        """Return counts and sums since the parser was created."""
        return {}


# ---------------------------------------------------------------------------------- notations


def read_state(text: str, classes: Collection[str] = ()) -> Truth | None:
    """Read the objects from a state in JSON; None if the text is not such a state.

    Each class has one cell, ``{"class": [row, column]}``, or a list of them, ``{"class": [[row,
    column], …]}``. A cell may also be ``{"row": row, "column": column}``.

    Args:
        text: The state, or a claim.
        classes: For a claim, the classes of the true state, with which its keys are identified.
    """
    try:
        written = as_places(read_json(text, classes), None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict):
        return None
    things: dict[str, Sequence[Cell]] = {}
    for name, value in written.items():
        value = as_places(value, None)
        cells = [value] if _is_cell(value) else value
        if not isinstance(cells, list) or not all(map(_is_cell, cells)):
            return None
        things[name] = [(row, column) for row, column in cells]
    return things


def read_grid(text: str, symbols: Mapping[str, Sequence[str]]) -> Truth:
    """Read the objects from a grid; `symbols` names the classes that each symbol stands for."""
    things: dict[str, list[Cell]] = defaultdict(list)
    for row, line in enumerate(grid_rows(text)):
        for column, symbol in enumerate(line):
            for name in symbols.get(symbol, ()):
                things[name].append((row, column))
    return things


def cells_as_relations(things: Truth, classes: Collection[str]) -> list[Relation]:
    """Return an exact relation for each object of these classes."""
    return [
        at(name, row, column)
        for name, cells in things.items()
        if name in classes
        for row, column in cells
    ]


def as_places(claimed: Any, truth: Any) -> Any:
    """Bring a claimed value into the form of the true one, where only the notation differs.

    ``{"row": 2, "column": 3}`` becomes ``[2, 3]``, a position where a list of positions is wanted
    becomes a list of one, and the other way round.
    """
    if isinstance(claimed, dict) and not isinstance(truth, dict):
        named = {key.strip().lower().removesuffix("umn"): value for key, value in claimed.items()}
        return [named["row"], named["col"]] if named.keys() == {"row", "col"} else claimed
    if isinstance(claimed, list):
        claimed = [as_places(item, []) for item in claimed]
        if _is_cell(claimed) and isinstance(truth, list) and truth and _is_cell(truth[0]):
            return [claimed]
        if _is_cell(truth) and len(claimed) == 1 and _is_cell(claimed[0]):
            return claimed[0]
    return claimed


def _is_whole(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())


def _is_cell(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_whole, value))


# ------------------------------------------------------------------------------------ the score


def f1(right: float, said: int, true: int) -> float:
    """An F1 of two sets in which every item above the true number costs a right one.

    The plain F1 is 2 / (k + 1) for naming all k candidates for the place of one object, and only
    1 / k on average for naming one of them. Here a candidate more than there are objects never
    pays: it adds at most one to `right`, which it costs again.

    Args:
        right: Number of right items, or their credit.
        said: Number of items that were claimed.
        true: Number of items that there are.
    """
    surplus = max(0, said - true)
    return 2 * max(0.0, right - surplus) / (said + true) if said + true else 1.0


def score_of_cells(relations: Sequence[Relation], truth: Truth) -> tuple[float, str]:
    """The mean over classes of the F1 of the cells that relations give, and the reason.

    Only relations count that leave one cell, with distances measured from the true position of the
    only object of a class.
    """
    said: dict[str, set[Cell]] = defaultdict(set)
    for relation, closed in zip(relations, closes_cycle(relations), strict=True):
        origins = [(0, 0)] if relation.of is None else truth.get(relation.of, ())
        if relation.exact and not closed and len(origins) == 1:
            cell = (origins[0][0] + relation.rows[0], origins[0][1] + relation.columns[0])
            said[relation.thing].add((int(cell[0]), int(cell[1])))
    classes = [name for name in truth if truth[name] or said[name]]
    scores = {
        name: f1(len(said[name] & set(truth[name])), len(said[name]), len(truth[name]))
        for name in classes
    }
    reason = ", ".join(f"{name} {found:.2f}" for name, found in scores.items())
    return (sum(scores.values()) / len(scores) if scores else 0.0), reason


@dataclass(frozen=True)
class ClassScore:
    """The score of the relations of one class.

    Attributes:
        there: Number of objects of the class in the state.
        found: Number of objects that were matched with a relation.
        credit: Sum of the credit of the matches: 1 for an exact relation, less for a vague one.
        wrong: Number of relations that are true of no object.
    """

    there: int
    found: int
    credit: float
    wrong: int

    @property
    def f1(self) -> float:
        """As of `f1`."""
        return f1(self.credit, self.found + self.wrong, self.there)

    def __str__(self) -> str:
        return f"{self.f1:.2f} ({self.found} of {self.there} found, {self.wrong} wrong)"


def score(
    relations: Sequence[Relation], truth: Truth, vague_credit: float
) -> dict[str, ClassScore]:
    """Score the relations of every class that has objects or relations.

    A relation is measured from the true position of the object that it refers to. It is exact if
    it allows one cell and refers to the only object of its class, and vague otherwise. Relations
    and objects are matched one to one for the most credit: 1 for an exact relation, `vague_credit`
    for a vague one. True relations that remain unmatched are repetitions and do not count.

    A relation that closes a cycle of references (the box is left of the player, who is right of
    the box) adds no information and counts as wrong. A relation that fits every cell does not
    count.
    """
    relations = [relation for relation in relations if relation.is_informative]
    circular = closes_cycle(relations)
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
    """Return the weighted mean F1 over classes; classes without a weight have weight 1."""
    weight = {name: weights.get(name, 1.0) for name in scores}
    total = sum(weight.values())
    if not total:
        raise JudgeError(
            f"there is nothing to judge: the classes with objects or relations are "
            f"{sorted(scores)} and the weights are {dict(weights)}; give one of these classes a "
            "weight above 0"
        )
    return min(1.0, sum(weight[name] * scores[name].f1 for name in scores) / total)


def closes_cycle(relations: Sequence[Relation]) -> list[bool]:
    """For each relation, whether earlier references lead from its origin back to its own class."""
    refers: dict[str, set[str]] = defaultdict(set)
    closed = []
    for relation in relations:
        if relation.of is None:
            closed.append(False)
            continue
        reached, queue = {relation.of}, [relation.of]
        for name in queue:  # the queue grows in the loop
            queue += refers[name] - reached
            reached |= refers[name]
        closed.append(relation.thing in reached)
        refers[relation.thing].add(relation.of)
    return closed


def _credit(relation: Relation, closed: bool, cell: Cell, truth: Truth, vague: float) -> float:
    """Return the credit of a relation for an object in a cell; negative if it is not true of it."""
    origins = [(0, 0)] if relation.of is None else truth.get(relation.of, ())
    if closed or not any(relation.fits(cell, origin) for origin in origins):
        return -1.0
    return 1.0 if relation.exact and len(origins) == 1 else vague


def _match(credit: np.ndarray) -> ClassScore:
    from scipy.optimize import linear_sum_assignment  # from the optional dependencies `judges`

    relations, things = credit.shape
    rows, columns = linear_sum_assignment(credit.clip(min=0), maximize=True)
    earned = [earned for earned in credit[rows, columns].tolist() if earned > 0]
    wrong = relations if not things else int((credit < 0).all(axis=1).sum())
    return ClassScore(things, len(earned), sum(earned), wrong)


def check_weights(weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        if not 0 <= weight < inf:
            raise ConfigError(f"weights.{name} is {weight}; give 0 or more")
