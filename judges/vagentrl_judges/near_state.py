"""NearState: compares a claim with the true state, and forgives numbers that are nearly right."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.claims.reading import plain, unfenced
from vagentrl.errors import ConfigError
from vagentrl_judges.exact_state import ExactState, claimed_json, true_json
from vagentrl_judges.relations import f1

_NUMBER = re.compile(r"-?\d{1,6}(?:\.\d{1,6})?")
_CLAUSE_END = re.compile(r";|\n|\.(?=\s|$)")
_LARGEST = 1e9
"""Numbers beyond this are no positions."""
_MOST = 200
"""Objects or clauses of a claim that are compared; states have fewer."""


class NearState(Judge):
    """Compares positions and sizes with a tolerance, and everything else exactly.

    It suits states whose numbers are measured, such as positions in millimetres on a table or in
    hundredths of a picture.

    - A number, or a list of numbers such as a position, earns 1 within the tolerance and falls to 0
      at twice the tolerance. Of a list the number that is farthest off decides.
    - Structured claims are compared as JSON values. The score is the mean over the fields of the
      truth and any extra fields of the claim. A list of objects is matched one to one for the most
      credit (F1). An object of such a list earns nothing if one of its words, such as its shape or
      its colour, is wrong, and else the mean credit of its numbers.
    - Natural claims are compared clause by clause (F1), in any order. A clause must be worded as
      the environment words it, but for its numbers.
    - Symbolic claims are compared as `ExactState` does.

    A claim that cannot be parsed scores 0.

    Args:
        tolerance: How far a number may be off, in the state's own units.
        tolerances: Other tolerances, by the name of the field.
        background: Symbols of empty cells in a grid.
    """

    def __init__(
        self,
        tolerance: float = 20.0,
        tolerances: dict[str, float] | None = None,
        background: str = "#_.W",
    ) -> None:
        self.tolerance = tolerance
        self.tolerances = dict(tolerances or {})
        for name, value in {"tolerance": tolerance, **self.tolerances}.items():
            if not 0 < value < float("inf"):
                raise ConfigError(f"NearState: the tolerance {name} is {value}; give more than 0")
        self.exact = ExactState(background)

    def identity(self) -> str:
        named = sorted(self.tolerances.items())
        return f"NearState({self.tolerance}, {named}, {self.exact.identity()})"

    async def judge(self, claim: Claim) -> Verdict:
        match claim.representation:
            case "structured":
                return self._structured(claim)
            case "symbolic":
                return await self.exact.judge(claim)
            case _:
                said, true = _clauses(claim.text), _clauses(claim.truth)
                credit = [[self._clause(a, b) for b in true] for a in said[:_MOST]]
                return _matched("clauses", credit, len(true), len(said))

    def _structured(self, claim: Claim) -> Verdict:
        truth = true_json(claim)
        try:
            claimed = claimed_json(claim, truth)
        except ValueError as error:
            return Verdict(0.0, f"not JSON: {str(error)[:80]}")
        return self._compare("the state", claimed, truth)

    def _compare(self, name: str, claimed: Any, truth: Any) -> Verdict:
        if isinstance(truth, dict) and isinstance(claimed, dict):
            parts = [
                self._compare(key, claimed[key], truth[key])
                if key in claimed and key in truth
                else Verdict(
                    0.0, f"{key[:40]} is {'missing' if key in truth else 'not part of it'}"
                )
                for key in truth | claimed
            ]
            wrong = "; ".join(part.reason for part in parts if part.reason)
            return Verdict(sum(p.score for p in parts) / len(parts) if parts else 1.0, wrong)
        if _are_objects(truth) and isinstance(claimed, list):
            credit = [[self._object(said, true) for true in truth] for said in claimed[:_MOST]]
            return _matched(name, credit, len(truth), len(claimed))
        score = self._value(name, claimed, truth)
        if score == 1:
            return Verdict(1.0)
        return Verdict(score, f"{name} is {json.dumps(truth)}, not {json.dumps(claimed)[:80]}")

    def _object(self, claimed: Any, truth: Mapping[str, Any]) -> float:
        """The credit of an object of a list."""
        if not isinstance(claimed, dict) or claimed.keys() != truth.keys():
            return 0.0
        numbers = [key for key, value in truth.items() if _numbers(value) is not None]
        if any(claimed[key] != truth[key] for key in truth if key not in numbers):
            return 0.0
        earned = [self._value(key, claimed[key], truth[key]) for key in numbers]
        return sum(earned) / len(earned) if earned else 1.0

    def _value(self, name: str, claimed: Any, truth: Any) -> float:
        said, true = _numbers(claimed), _numbers(truth)
        if said is None or true is None or isinstance(claimed, list) != isinstance(truth, list):
            return float(type(claimed) is type(truth) and claimed == truth)
        return self._near(said, true, self.tolerances.get(name, self.tolerance))

    def _near(self, said: Sequence[float], true: Sequence[float], tolerance: float) -> float:
        if len(said) != len(true):
            return 0.0
        off = max((abs(a - b) for a, b in zip(said, true, strict=True)), default=0.0)
        return min(1.0, max(0.0, 2 - off / tolerance))

    def _clause(self, said: str, true: str) -> float:
        if _NUMBER.sub("#", said) != _NUMBER.sub("#", true):
            return 0.0
        a, b = ([float(n) for n in _NUMBER.findall(text)] for text in (said, true))
        return self._near(a, b, self.tolerance)


def _numbers(value: Any) -> list[float] | None:
    """The numbers of a value that is one, or a list of them; None for other values."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(number) in (int, float) for number in values):
        return None
    if not all(-_LARGEST < number < _LARGEST for number in values):  # NaN is not either
        return None
    return values


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _clauses(text: str) -> list[str]:
    """The clauses in one spelling. As they are compared word by word, denials are none of them."""
    worded = (part.strip() for part in _CLAUSE_END.split(plain(unfenced(text))))
    return [clause for clause in worded if clause]


def _matched(name: str, credit: list[list[float]], true: int, said: int) -> Verdict:
    """F1 of what was said and what is true, matched one to one for the most credit.

    Args:
        name: What is compared.
        credit: For each thing that was said, the credit with each that is true.
        true: How many things are true.
        said: How many were said; those without a row in `credit` earn nothing.
    """
    from scipy.optimize import linear_sum_assignment  # from the optional dependencies `judges`

    if not said or not true:
        return Verdict(1.0) if said == true else Verdict(0.0, f"{name}: {said} said of {true}")
    table = np.array(credit)
    earned = float(table[linear_sum_assignment(table, maximize=True)].sum())
    score = min(1.0, f1(earned, said, true))
    return Verdict(
        score, "" if score == 1 else f"{name}: {said} said, {earned:.2f} of {true} right"
    )
