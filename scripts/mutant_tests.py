"""Chooses the tests of a mutant: those that execute the function that it changes."""

from __future__ import annotations

import ast
import cProfile
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest
from hypothesis import settings

MOST_CASES = 3
"""Cases of a parametrised test that are run for a mutant."""
MOST_EXAMPLES = 25
"""Examples of a property that are run for a mutant."""
MOST_CPU_S = 3.0
"""Processor time of the tests that are run for a mutant at first."""


class Executed(NamedTuple):
    """A test, the processor time it takes, and the functions of each file that it executes."""

    test: str
    cpu_s: float
    functions: dict[str, list[str]]


class FewExamples:
    """A plugin of pytest that tries few examples of a property, always the same."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        settings.register_profile("mutants", settings.get_profile("ci"), max_examples=MOST_EXAMPLES)
        settings.load_profile("mutants")


class Recorder(FewExamples):
    """A plugin of pytest that notes what each test executes of a package.

    Args:
        package: The package's folder.
        found: File for what was found; `ProjectTests.read` reads it.
    """

    def __init__(self, package: Path, found: Path) -> None:
        self.package = package
        self.found = found
        self.tests: list[Executed] = []
        self.shared: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.at_import: set[tuple[str, str]] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, object, object]:
        profile = cProfile.Profile(builtins=False)
        with profile:
            report = yield
        self.at_import |= self._functions(profile)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        profile = cProfile.Profile(builtins=False)
        with profile:
            yield
        # other tests may share a fixture
        self.shared[_file_of(item.nodeid)] |= self._functions(profile)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        profile = cProfile.Profile(builtins=False)
        started = time.process_time()
        with profile:
            yield
        functions: dict[str, list[str]] = defaultdict(list)
        for file, name in self._functions(profile) | self.shared[_file_of(item.nodeid)]:
            functions[file].append(name)
        self.tests.append(Executed(item.nodeid, time.process_time() - started, functions))

    def _functions(self, profile: cProfile.Profile) -> set[tuple[str, str]]:
        """File and name of the package's functions that were called, the outermost ones."""
        codes = [entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType)]
        return {
            (str(Path(code.co_filename).relative_to(self.package.parent)), outermost(code))
            for code in codes
            if code.co_filename.startswith(str(self.package))
        }

    def pytest_sessionfinish(self) -> None:
        record = {
            "tests": self.tests,
            "at_import": sorted(self.at_import),
            "modules": list(sys.modules),
        }
        self.found.write_text(json.dumps(record))


def outermost(code: CodeType) -> str:
    """The qualified name of a function, or of the function around it."""
    return code.co_qualname.split(".<locals>")[0]


@dataclass(frozen=True)
class ProjectTests:
    """Tests and what they execute.

    Attributes:
        executed: The tests, the fastest first.
        at_import: File and name of each function that is executed while test files are imported.
        modules: Names of all modules that the tests import.
    """

    executed: list[Executed]
    at_import: set[tuple[str, str]]
    modules: list[str]

    @classmethod
    def read(cls, found: Path) -> ProjectTests:
        record = json.loads(found.read_text())
        executed = [Executed(*one) for one in record["tests"]]
        at_import = {(file, name) for file, name in record["at_import"]}
        return cls(sorted(executed, key=lambda one: one.cpu_s), at_import, record["modules"])

    def of_line(self, file: str, source: str, line: int) -> list[Executed]:
        """The tests that execute the function with this line; all outside of functions."""
        function = function_at(source, line)
        if function is None:
            return self.executed
        return [one for one in self.executed if function in one.functions.get(file, [])]

    def all_of_line(self, file: str, source: str, line: int) -> list[Executed]:
        """Also all other tests if that function is executed while test files are imported."""
        mine = self.of_line(file, source, line)
        if (file, function_at(source, line)) not in self.at_import:
            return mine
        return mine + [one for one in self.executed if one not in mine]


def few_cases(tests: Sequence[Executed]) -> list[Executed]:
    """The fastest of these tests, with only the first cases of each parametrised one."""
    seen: Counter[str] = Counter()
    kept: list[Executed] = []
    cpu_s = 0.0
    for one in tests:
        name = one.test.split("[")[0]
        seen[name] += 1
        if seen[name] <= MOST_CASES:
            kept.append(one)
            cpu_s += one.cpu_s
        if cpu_s > MOST_CPU_S:
            break
    return kept


def function_at(source: str, line: int) -> str | None:
    """The outermost function around a line, signature included; None outside of functions."""
    inside: list[str] = []
    body: list[ast.stmt] = ast.parse(source).body
    while True:
        around = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        if not around:
            return None
        inside.append(around[0].name)
        if not isinstance(around[0], ast.ClassDef):
            return ".".join(inside)
        body = around[0].body


def files_of_tests(tests: Sequence[str]) -> list[str]:
    """The files with these tests, each once."""
    return list(dict.fromkeys(_file_of(test) for test in tests))


def _file_of(test: str) -> str:
    return test.split("::")[0]
