"""EgocentricF1: scores where a claim says that things are, seen from the agent, with tolerances."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ConfigError, JudgeError
from vagentrl_judges.relations import ClassScore, check_weights, mean_f1

NAMES: Mapping[str, Sequence[str]] = {
    "table": ("desk",),
    "chair": ("seat",),
    "sofa": ("couch",),
    "bed": (),
    "shelf": ("bookshelf", "bookcase"),
    "fridge": ("refrigerator",),
    "ball": (),
    "lamp": ("light",),
    "plant": (),
    "vase": (),
    "television": ("tv",),
    "clock": (),
    "guitar": (),
    "suitcase": (),
    "doorway": ("door",),
}
"""Things that a claim may name, with other words for them: those of Navigation."""

_AHEAD = {"ahead": 1, "front": 1, "forward": 1, "forwards": 1, "back": -1, "behind": -1}
_RIGHT = {"right": 1, "left": -1}
_METRES = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)\s*(?:m|metres?|meters?)\b")
_WAY = re.compile(rf"\b(?:{'|'.join((*_AHEAD, *_RIGHT))})\b")
_CLAUSE = re.compile(r"[;\n!?]|\.(?!\d)|\b(?:but|while|whereas)\b")
_HIDDEN = re.compile(
    r"\bout of (?:sight|view)\b|\bhidden\b"
    r"|\b(?:not|nowhere)\b[\w\s]{0,12}\b(?:in (?:sight|view)|visible|seen|see)\b"
    r"|\b(?:cannot|can't) (?:be seen|see)\b"
)
_NOT_SURE = re.compile(
    r"\b(?:not|no|never|neither|nor|without|or|either|maybe|perhaps|possibly|might|may|could|if"
    r"|unless|unknown)\b|n't\b"
)


@dataclass(frozen=True)
class Placed:
    """A statement about where a thing is, seen from the agent.

    Attributes:
        bearing: Degrees clockwise from straight ahead.
        distance: Metres; None if only the direction was told.
        worded: Whether the direction was told in words, which cover 45 degrees.
    """

    bearing: float
    distance: float | None
    worded: bool = False

    @classmethod
    def at(cls, ahead: float, right: float) -> Placed:
        """The place so many metres ahead and to the right."""
        return cls(math.degrees(math.atan2(right, ahead)), math.hypot(ahead, right))


HIDDEN = "hidden"
"""A statement that a thing is out of sight."""
Statement = Placed | str
"""`Placed` or `HIDDEN`."""
Statements = Mapping[str, list[Statement]]
"""What is said of the things of each name."""


class EgocentricF1(Judge):
    """The mean, over names of things, of the F1 of where a claim says that they are.

    The truth is the state's JSON: for each name the metres ahead of the agent and to its right,
    ``[ahead, right]``, a list of such pairs, or null for a thing that is out of sight. Other fields
    do not count. Structured claims are read directly, natural ones by rules: distances ("2.1 m"),
    directions ("ahead-left", "behind and to the right"), metres on each axis ("2 m ahead and 1 m to
    the left"), "out of sight". Statements and things of a name are matched one to one::

        F1 = 2 * credit / (found + wrong + there)

    A statement earns 1 if direction and distance are right, `direction_credit` if it tells only a
    direction, and that is right; otherwise it is wrong. A direction in words covers 45 degrees. A
    thing that the claim does not name scores 0, and so does one that is named but not there.

    Args:
        angle_tolerance: Degrees by which a direction may be wrong.
        distance_tolerance: Metres by which a distance may be wrong.
        relative_tolerance: Share of the true distance by which it may be wrong, if that is more.
        direction_credit: Credit for a right direction without a distance, from 0 to 1.
        weights: Weight of each name in the mean; 1 for names not given.
        names: Other words for things, by name, such as ``{sofa: [couch]}``, beside `NAMES`.
    """

    def __init__(
        self,
        angle_tolerance: float = 15.0,
        distance_tolerance: float = 0.25,
        relative_tolerance: float = 0.15,
        direction_credit: float = 0.5,
        weights: dict[str, float] | None = None,
        names: dict[str, list[str]] | None = None,
    ) -> None:
        if find_spec("scipy") is None:
            raise ConfigError(
                "EgocentricF1 needs the package scipy: pip install 'vagentrl[judges]'"
            )
        if not 0 <= angle_tolerance <= 90:
            raise ConfigError(f"angle_tolerance is {angle_tolerance}; give 0 to 90 degrees")
        if not 0 <= distance_tolerance < math.inf:
            raise ConfigError(f"distance_tolerance is {distance_tolerance}; give 0 or more metres")
        if not 0 <= relative_tolerance < 1:
            raise ConfigError(f"relative_tolerance is {relative_tolerance}; give 0 to below 1")
        if not 0 <= direction_credit <= 1:
            raise ConfigError(f"direction_credit is {direction_credit}; give a number from 0 to 1")
        check_weights(weights or {})
        self.angle_tolerance = angle_tolerance
        self.distance_tolerance = distance_tolerance
        self.relative_tolerance = relative_tolerance
        self.direction_credit = direction_credit
        self.weights = weights or {}
        self.names = {**NAMES, **(names or {})}

    def identity(self) -> str:
        numbers = (self.angle_tolerance, self.distance_tolerance, self.relative_tolerance)
        names = sorted((name, sorted(words)) for name, words in self.names.items())
        weights = sorted(self.weights.items())
        return f"EgocentricF1 {numbers} {self.direction_credit} {weights} {names}"

    async def judge(self, claim: Claim) -> Verdict:
        truth = read_places(claim.state.structured)
        if truth is None:
            raise JudgeError(
                "EgocentricF1 needs a state whose JSON gives [metres ahead, metres to the right], "
                f"a list of them or null for each name, and got {claim.state.structured[:200]!r}; "
                "use another judge"
            )
        claimed = self._read(claim, truth)
        scores = {
            name: self._score(claimed.get(name, []), truth.get(name, []))
            for name in {**truth, **claimed}
        }
        scores = {name: score for name, score in scores.items() if score.there or score.wrong}
        reason = ", ".join(f"{name} {score}" for name, score in scores.items())
        return Verdict(mean_f1(scores, self.weights), reason)

    def _read(self, claim: Claim, truth: Statements) -> Statements:
        match claim.representation:
            case "structured":
                return read_places(claim.text) or {}
            case "natural":
                return read_words(claim.text, {**{name: () for name in truth}, **self.names})
            case _:
                raise JudgeError(
                    "EgocentricF1 reads no maps; use ExactState for symbolic claims, or ask for "
                    "natural or structured ones"
                )

    def _score(self, claimed: list[Statement], there: list[Statement]) -> ClassScore:
        from scipy.optimize import linear_sum_assignment  # from the extra `judges`

        credit = np.array([[self._credit(c, t) for t in there] for c in claimed])
        credit = credit.reshape(len(claimed), len(there))
        rows, columns = linear_sum_assignment(credit, maximize=True)
        earned = [value for value in credit[rows, columns].tolist() if value > 0]
        wrong = int((credit <= 0).all(axis=1).sum()) if there else len(claimed)
        return ClassScore(len(there), len(earned), sum(earned), wrong)

    def _credit(self, claimed: Statement, true: Statement) -> float:
        """The credit of a statement for a thing; 0 if it is not true of it."""
        if isinstance(claimed, str) or isinstance(true, str):
            return float(claimed == true)
        assert true.distance is not None  # a state gives metres
        off = abs((claimed.bearing - true.bearing + 180) % 360 - 180)
        if off > self.angle_tolerance + (22.5 if claimed.worded else 0) + 1e-6:
            return 0.0
        if claimed.distance is None:
            return self.direction_credit
        allowed = max(self.distance_tolerance, self.relative_tolerance * true.distance)
        return float(abs(claimed.distance - true.distance) <= allowed + 1e-6)


def read_places(text: str) -> Statements | None:
    """Read the places of a state in JSON; None if it is not such a state.

    Raises nothing: a text that the agent wrote may be anything.
    """
    try:
        written = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict):
        return None
    places: dict[str, list[Statement]] = {}
    for name, value in written.items():
        if isinstance(value, bool | int | float | str):
            continue  # such as whether the way was blocked
        values = [value] if value is None or _is_place(value) else value
        if not isinstance(values, list) or not all(v is None or _is_place(v) for v in values):
            return None
        places[name] = [HIDDEN if v is None else Placed.at(*v) for v in values]
    return places


def _is_place(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(n) in (int, float) and abs(n) < 1e6 for n in value)
    )


def read_words(text: str, names: Mapping[str, Collection[str]]) -> Statements:
    """Read where a text says that things are; clauses that are negated or uncertain are skipped.

    Args:
        text: The claim.
        names: Other words for each name.
    """
    words = {name.lower(): name for name in names}
    for name, others in names.items():
        for other in others:
            words.setdefault(other.lower(), name)
    pattern = _pattern(tuple(sorted(words, key=len, reverse=True)))
    found: dict[str, list[Statement]] = {}
    for clause in _CLAUSE.split(text.lower().replace("\u2019", "'")):
        for name, said in _things(clause, pattern):
            statement = _statement(said)
            if statement is not None:
                found.setdefault(words[name], []).append(statement)
    return found


@lru_cache(maxsize=32)
def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(map(re.escape, words))})s?\b")


def _things(clause: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Each thing that a clause names, with what is said about it: the words after its name, and
    for the first one those before it if nothing follows."""
    things = list(pattern.finditer(clause))
    for number, thing in enumerate(things):
        end = things[number + 1].start() if number + 1 < len(things) else len(clause)
        said = clause[thing.end() : end]
        if len(things) == 1:
            said = f"{clause[: thing.start()]} {said}"
        yield thing[1], said


def _statement(said: str) -> Statement | None:
    if _HIDDEN.search(said):
        return HIDDEN
    if _NOT_SURE.search(said):
        return None
    ways = list(_WAY.finditer(said))
    metres = [(found.start(), float(found[1])) for found in _METRES.finditer(said)]
    if not ways or len(metres) > 2:
        return None
    if len(metres) == 2:
        return _on_both_axes(ways, metres)
    signs: dict[str, int] = {}
    for way in ways:
        axis, sign = _axis(way[0])
        if signs.setdefault(axis, sign) != sign:
            return None
    bearing = Placed.at(signs.get("ahead", 0), signs.get("right", 0)).bearing
    return Placed(bearing, metres[0][1] if metres else None, worded=True)


def _on_both_axes(ways: list[re.Match[str]], metres: list[tuple[int, float]]) -> Placed | None:
    """The place of "2 m ahead and 1 m to the left"; None if the two are not on different axes."""
    if len(ways) != 2:
        return None
    place: dict[str, float] = {}
    for way, (_, distance) in zip(ways, metres, strict=True):
        axis, sign = _axis(way[0])
        place[axis] = sign * distance
    return Placed.at(place["ahead"], place["right"]) if len(place) == 2 else None


def _axis(word: str) -> tuple[str, int]:
    return ("ahead", _AHEAD[word]) if word in _AHEAD else ("right", _RIGHT[word])
