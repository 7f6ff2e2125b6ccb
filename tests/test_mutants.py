"""The mutants that scripts/mutate.py tries."""

from pathlib import Path

import pytest

MODULE = '''
"""A module of 1."""

import math


def half(count: int = 2) -> float:
    """Half of 3."""
    if count < 0:
        raise ValueError("count is below 0")
    return count / 2
'''


def test_mutants_by_hand(tmp_path: Path):
    pytest.importorskip("mutmut")
    from scripts.mutants import mutants_of

    (tmp_path / "module.py").write_text(MODULE)
    found = [(mutant.line, mutant.was, mutant.now) for mutant in mutants_of(tmp_path, "module.py")]
    # nothing is changed in docstrings, annotations, imports and errors
    assert sorted(found) == [
        (7, "def half(count: int = 2) -> float:", "def half(count: int = 3) -> float:"),
        (9, "if count < 0:", "if count < 1:"),
        (9, "if count < 0:", "if count <= 0:"),
        (11, "return count / 2", "return count * 2"),
        (11, "return count / 2", "return count / 3"),
    ]
