"""The tests of a programming problem, and the program in a reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vagentrl.errors import RowError, seen

_FENCE = "```"
_PYTHON = ("", "python", "py", "python3")
_WANTED = (
    "give a list of {input: …, output: …}, a list of assert statements, or one program that "
    "raises an error if the candidate is wrong"
)


@dataclass(frozen=True)
class Case:
    """Standard input, and the standard output that is expected for it."""

    input: str
    output: str

    def matches(self, output: str) -> bool:
        """Whether an output is the expected one, apart from white space at the ends of lines."""
        return _trimmed(output) == _trimmed(self.output)


@dataclass(frozen=True)
class Suite:
    """The tests of a problem: cases or checks, never both.

    Attributes:
        cases: Each is run in a process of its own.
        checks: Statements that run one after another in the namespace of the candidate.
    """

    cases: tuple[Case, ...] = ()
    checks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.cases) + len(self.checks)


def read_tests(given: Any) -> Suite:
    """Read the ``tests`` of a row.

    Args:
        given: As in `_WANTED`, or ``{inputs: […], outputs: […]}``, or either as a text of JSON.

    Raises:
        RowError: They are none of these, or there is none.
    """
    if isinstance(given, str):
        given = _from_json(given)
    if isinstance(given, str):
        return Suite(checks=(given,))
    if isinstance(given, Mapping) and {"inputs", "outputs"} <= set(given):
        inputs, outputs = list(given["inputs"]), list(given["outputs"])
        if len(inputs) != len(outputs):
            raise RowError(f"there are {len(inputs)} inputs and {len(outputs)} outputs in tests")
        given = [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]
    if isinstance(given, np.ndarray):
        given = given.tolist()  # as Parquet files have them
    if not isinstance(given, Sequence):
        raise RowError(f"tests is {seen(given)}; {_WANTED}")
    tests = list(given)
    if not tests:
        raise RowError(f"a row has no tests; {_WANTED}")
    if all(isinstance(test, str) for test in tests):
        return Suite(checks=tuple(tests))
    return Suite(cases=tuple(_case(test) for test in tests))


def _from_json(text: str) -> Any:
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _case(test: Any) -> Case:
    match test:
        case {"input": str(given), "output": str(wanted)}:
            return Case(given, wanted)
    raise RowError(f"a test is {seen(test)}; {_WANTED}")


def last_program(reply: str) -> str | None:
    """The last closed block of Python in a reply, between lines of three backticks."""
    program: str | None = None
    block: list[str] = []
    language: str | None = None  # of the open block
    for line in reply.splitlines():
        stripped = line.strip()
        if language is None:
            if stripped.startswith(_FENCE):
                language, block = stripped[len(_FENCE) :].strip().lower(), []
        elif stripped == _FENCE:
            if language in _PYTHON:
                program = "\n".join(block)
            language = None
        else:
            block.append(line)
    return program


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
