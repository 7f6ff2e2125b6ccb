"""ExactState: compares a claim with the true state, without a model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.claims.reading import asserted, grid_rows, read_json
from vagentrl.errors import ConfigError, JudgeError
from vagentrl_judges.relations import as_places, f1, read_state, score_of_cells
from vagentrl_judges.rule_parser import RuleParser


class ExactState(Judge):
    """Compares a claim with the true state, in the claim's own representation.

    - Structured claims are compared as JSON values. The score is the mean over the fields of the
      truth and any extra fields of the claim. A field that is a list of objects is compared as a
      multiset; any other field, such as a position, is right or wrong.
    - Symbolic claims are compared cell by cell, ignoring white space. A grid of another shape
      scores 0. Cells that are background in both grids do not count, so copying walls and floor
      earns nothing.
    - Natural claims are compared by the positions that they give to each class of objects, in any
      words that `RuleParser` reads; the score is the mean over classes. Where the state has no
      positions, or the claim gives none, it is compared clause by clause with the environment's own
      clauses.

    Multisets are compared by an F1 in which every item above the true number costs a right one, so
    that naming candidates does not pay (`vagentrl_judges.relations.f1`).

    Claims are read by `vagentrl.claims.reading`. A claim that cannot be parsed scores 0, because
    that is the agent's mistake and not a failure of the judge.

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
        self._parser = RuleParser()

    def identity(self) -> str:
        return f"ExactState({''.join(sorted(self.background))})"

    async def judge(self, claim: Claim) -> Verdict:
        match claim.representation:
            case "structured":
                return self._structured(claim)
            case "symbolic":
                return self._symbolic(claim)
            case _:
                return self._natural(claim)

    def _natural(self, claim: Claim) -> Verdict:
        said, truth = asserted(claim.text), asserted(claim.truth)
        worded = _compare_lists("clauses", said, truth)
        state = read_state(claim.state.structured)
        if state is None or worded.score == 1:
            return worded
        relations = self._parser.read(claim.text, tuple(state))
        return Verdict(*score_of_cells(relations, state)) if relations else worded

    def _structured(self, claim: Claim) -> Verdict:
        truth = true_json(claim)
        try:
            return _compare("the state", claimed_json(claim, truth), truth)
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
        said, true = (sum(pair[i] not in self.background for pair in pairs) for i in (0, 1))
        return Verdict(
            max(0, right - max(0, said - true)) / len(compared),
            f"{right} of {len(compared)} cells that count are right, {said} things said of {true}",
        )


def true_json(claim: Claim) -> Any:
    """The true state as a JSON value.

    Raises:
        JudgeError: When the environment's structured state is none.
    """
    try:
        return read_json(claim.truth)
    except ValueError as error:
        raise JudgeError(
            f"the environment's structured state is not JSON ({error}): {claim.truth[:200]!r}"
        ) from error


def claimed_json(claim: Claim, truth: Any) -> Any:
    """The claim as a JSON value, with the keys of the truth.

    Raises:
        ValueError: When it is none.
    """
    return read_json(claim.text, tuple(truth) if isinstance(truth, dict) else ())


def _compare(name: str, claimed: Any, truth: Any) -> Verdict:
    """Compare a JSON value with the true one, recursively for objects."""
    claimed = as_places(claimed, truth)
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
    """Compare two multisets."""
    a, b = Counter(claimed), Counter(truth)
    right, said, true = (a & b).total(), a.total(), b.total()
    if right == said == true:
        return Verdict(1.0)
    return Verdict(f1(right, said, true), f"{name}: {said} said, {right} right of {true}")


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


def _grid(text: str) -> list[str]:
    return ["".join(row.split()) for row in grid_rows(text)]
