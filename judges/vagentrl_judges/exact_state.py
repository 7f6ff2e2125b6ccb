"""ExactState: compares a claim with the true state, without a model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import accumulate
from typing import Any

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ConfigError, JudgeError

_CLAUSE_END = re.compile(r";|\n|\.(?=\s|$)")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
MAX_DEPTH = 32
"""How deep brackets of a structured claim may be nested; states nest a few levels."""


class ExactState(Judge):
    """Compares a claim with the true state, in the claim's own representation.

    - Structured claims are compared as JSON values. The score is the mean over the fields of the
      truth and any extra fields of the claim. A field that is a list of objects is compared as a
      multiset (F1); any other field, such as a position, is right or wrong.
    - Symbolic claims are compared cell by cell, ignoring white space. A grid of another shape
      scores 0. Cells that are background in both grids do not count, so copying walls and floor
      earns nothing.
    - Natural claims are compared clause by clause (F1), in any order. A clause is right only if it
      is worded as the environment words it.

    A claim that cannot be parsed scores 0, because that is the agent's mistake and not a failure
    of the judge.

    Args:
        background: Symbols of empty cells in a grid: walls and floors.
    """

    def __init__(self, background: str = "#_.W") -> None:
        if any(symbol.isspace() for symbol in background):
            raise ConfigError(
                f"ExactState.background is {background!r}; white space is never compared: give "
                "only the symbols of walls and floors"
            )
        self.background = frozenset(background)

    def identity(self) -> str:
        return f"ExactState({''.join(sorted(self.background))})"

    async def judge(self, claim: Claim) -> Verdict:
        match claim.representation:
            case "structured":
                return self._structured(claim)
            case "symbolic":
                return self._symbolic(claim)
            case _:
                return _compare_lists("clauses", _clauses(claim.text), _clauses(claim.truth))

    def _structured(self, claim: Claim) -> Verdict:
        try:
            truth = _read(claim.truth)
        except ValueError as error:
            raise JudgeError(
                f"the environment's structured state is not JSON ({error}): {claim.truth[:200]!r}"
            ) from error
        try:
            return _compare("the state", _read(claim.text), truth)
        except ValueError as error:
            return Verdict(0.0, f"not JSON: {str(error)[:80]}")

    def _symbolic(self, claim: Claim) -> Verdict:
        claimed, truth = _grid(claim.text), _grid(claim.truth)
        shape, wanted = [len(row) for row in claimed], [len(row) for row in truth]
        if shape != wanted:
            return Verdict(0.0, f"rows of {shape[:20]} cells, not {wanted[:20]}")
        pairs = list(zip("".join(claimed), "".join(truth), strict=True))
        compared = [(a, b) for a, b in pairs if not (a == b and a in self.background)]
        right = sum(a == b for a, b in compared)
        if right == len(compared):
            return Verdict(1.0)
        return Verdict(
            right / len(compared), f"{right} of {len(compared)} cells that count are right"
        )


def _compare(name: str, claimed: Any, truth: Any) -> Verdict:
    """Compare a JSON value with the true one, recursively for objects."""
    if isinstance(truth, dict) and isinstance(claimed, dict):
        parts = {
            key: _compare(key, claimed[key], truth[key])
            if key in claimed and key in truth
            else Verdict(0.0, f"{key} is {'missing' if key in truth else 'not part of it'}")
            for key in truth | claimed
        }
        wrong = "; ".join(part.reason for part in parts.values() if part.reason)
        return Verdict(sum(p.score for p in parts.values()) / len(parts) if parts else 1.0, wrong)
    if isinstance(claimed, list) and _is_multiset(truth):
        return _compare_lists(name, map(_frozen, claimed), map(_frozen, truth))
    if _frozen(claimed) == _frozen(truth):
        return Verdict(1.0)
    return Verdict(0.0, f"{name} is {json.dumps(truth)}, not {json.dumps(claimed)[:80]}")


def _compare_lists(name: str, claimed: Iterable[Hashable], truth: Iterable[Hashable]) -> Verdict:
    """Return the F1 of two multisets."""
    a, b = Counter(claimed), Counter(truth)
    right, said, true = (a & b).total(), a.total(), b.total()
    if right == said == true:
        return Verdict(1.0)
    return Verdict(2 * right / (said + true), f"{name}: {said} said, {right} right of {true}")


def _is_multiset(value: Any) -> bool:
    """Whether a value is a list of objects; a list of numbers is a single position."""
    return isinstance(value, list) and not (
        value and all(isinstance(item, int | float) for item in value)
    )


def _frozen(value: Any) -> Hashable:
    """Return a hashable form of a JSON value; 1 equals 1.0 but not true."""
    match value:
        case bool():
            return ("truth", value)
        case list():
            return tuple(_frozen(item) for item in value)
        case dict():
            return frozenset((key, _frozen(item)) for key, item in value.items())
        case _:
            return value


def _read(text: str) -> Any:
    """The JSON value.

    Raises:
        ValueError: When the text is not JSON, names a field twice, or nests deeper than
            `MAX_DEPTH`. Depth is counted, because how deep the reader itself can go depends on how
            much of the interpreter's stack is left.
    """
    if _depth(text) > MAX_DEPTH:
        raise ValueError(f"brackets are nested deeper than {MAX_DEPTH}")
    return json.loads(text, object_pairs_hook=_fields)


def _depth(text: str) -> int:
    """How deep the brackets outside of strings are nested."""
    found = _STRING_OR_BRACKET.findall(text)
    steps = (1 if token in "[{" else -1 for token in found if token in "[]{}")
    return max(accumulate(steps), default=0)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate fields, of which `json` would silently keep the last."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice[:40]!r} is named twice")
    return fields


def _grid(text: str) -> list[str]:
    return [row for line in text.splitlines() if (row := "".join(line.split()))]


def _clauses(text: str) -> list[str]:
    worded = (" ".join(part.split()).casefold() for part in _CLAUSE_END.split(text))
    return [clause for clause in worded if clause]
