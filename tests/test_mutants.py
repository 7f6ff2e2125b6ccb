"""The mutants that scripts/mutate.py tries, and the tests that it runs for them."""

import importlib
from pathlib import Path

import pytest

MODULE = '''
"""A module of 1."""

import math


def half(count: int = 2) -> float:
    """Half of 3."""
    if count < 0:
        raise ValueError("count is below 0")
    warn("2 of them")
    return count / 2
'''
CLASS = """
LIMIT = 2


class Halves:
    limit = LIMIT

    def __init__(self, count: int = 8) -> None:
        self.count = count

    def once(self) -> float:
        def half(of: float) -> float:
            return of / 2

        return half(self.count)
"""


def test_mutants_by_hand(tmp_path: Path):
    pytest.importorskip("mutmut")
    from scripts.mutants import mutants_of

    (tmp_path / "module.py").write_text(MODULE)
    found = [(mutant.line, mutant.was, mutant.now) for mutant in mutants_of(tmp_path, "module.py")]
    # nothing is changed in docstrings, annotations, imports and errors, and no text with a space
    assert sorted(found) == [
        (7, "def half(count: int = 2) -> float:", "def half(count: int = 3) -> float:"),
        (9, "if count < 0:", "if count < 1:"),
        (9, "if count < 0:", "if count <= 0:"),
        (11, 'warn("2 of them")', "warn(None)"),
        (12, "return count / 2", "return count * 2"),
        (12, "return count / 2", "return count / 3"),
    ]


def test_a_function_is_found_by_any_of_its_lines():
    from scripts.mutant_tests import function_at

    wanted = dict.fromkeys((8, 9), "Halves.__init__") | dict.fromkeys(
        range(11, 16), "Halves.once"
    )  # the outermost function, whose code holds that of `half`
    lines = range(1, len(CLASS.splitlines()) + 1)
    assert {line: found for line in lines if (found := function_at(CLASS, line))} == wanted


def test_the_fastest_tests_and_few_cases_of_each_run_first():
    from scripts.mutant_tests import MOST_CASES, MOST_CPU_S, Executed, few_cases

    cases = [Executed(f"a::test[{case}]", 0.1, {}) for case in range(MOST_CASES + 2)]
    slow = [Executed("a::slow", MOST_CPU_S, {}), Executed("a::slower", MOST_CPU_S, {})]
    assert few_cases([*cases, *slow]) == [*cases[:MOST_CASES], slow[0]]


@pytest.mark.parametrize(
    ("line", "was", "now", "once"),
    [(14, "of / 2", "of / 4", 2.0), (8, "count: int = 8", "count: int = 6", 3.0)],
)
def test_a_mutant_takes_the_place_of_a_function_that_others_have_imported(
    line: int, was: str, now: str, once: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("mutmut")
    from scripts.mutant_runs import put_in_place
    from scripts.mutants import Mutant

    name = f"halves_{line}"
    (tmp_path / f"{name}.py").write_text(CLASS)
    monkeypatch.syspath_prepend(tmp_path)
    imported = importlib.import_module(name).Halves
    assert imported().once() == 4
    assert put_in_place(Mutant(f"{name}.py", line, was, now, CLASS.replace(was, now)))
    assert imported().once() == once
    # a constant may be anywhere by now
    constant = CLASS.replace("LIMIT = 2", "LIMIT = 3")
    assert not put_in_place(Mutant(f"{name}.py", 2, "LIMIT = 2", "LIMIT = 3", constant))
