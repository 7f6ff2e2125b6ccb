"""Runs tests against mutants, each in a process of its own that has imported everything before."""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from scripts.mutant_tests import FewExamples, function_at
from scripts.mutants import Mutant

PASSED, FAILED, NOT_IN_PLACE = 0, 1, 99


class Chosen(FewExamples):
    """A plugin of pytest that runs these tests and no others, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.tests = tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = _in_order(items, self.tests)


class Server(FewExamples):
    """A plugin of pytest that runs tests against mutants instead of running all tests once.

    The tests are collected once. Each mutant then gets a fork of that process, in which the
    function that it changes takes over the mutant's code. Mutants that change something else
    (a constant, an attribute of a class) have the result `NOT_IN_PLACE`.

    Args:
        jobs: Mutants, the names of their tests, and limits of processor time.
        done: Called with each result.
    """

    def __init__(
        self, jobs: Sequence[tuple[Mutant, list[str], float]], done: Callable[[int], None]
    ) -> None:
        self.jobs = jobs
        self.done = done

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for mutant, tests, cpu_s in self.jobs:
            items = _in_order(session.items, tests)
            self.done(in_fork(lambda: _run(session, mutant, items), cpu_s))  # noqa: B023
        return True


def _in_order(items: Sequence[pytest.Item], tests: Sequence[str]) -> list[pytest.Item]:
    place = {test: place for place, test in enumerate(tests)}
    kept = [item for item in items if item.nodeid in place]
    return sorted(kept, key=lambda item: place[item.nodeid])


def _run(session: pytest.Session, mutant: Mutant, items: Sequence[pytest.Item]) -> int:
    if not put_in_place(mutant):
        return NOT_IN_PLACE
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return FAILED
    return PASSED


def put_in_place(mutant: Mutant) -> bool:
    """Give the changed function the mutant's code; returns whether that was possible."""
    name = mutant.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    module = sys.modules[name]
    path = str(module.__file__)
    function = function_at(Path(path).read_text(), mutant.line)
    spec = module.__spec__
    if function is None or spec is None:
        return False
    olds = _functions(path, function)
    changed = importlib.util.module_from_spec(spec)
    _execute(mutant, changed, path)
    news = [found for found in _functions(path, function) if found not in olds]
    if not olds or len(olds) != len(news):
        return False
    for old, new in zip(olds, news, strict=True):
        if old.__code__.co_freevars != new.__code__.co_freevars:
            return False
        old.__code__ = new.__code__
        old.__defaults__, old.__kwdefaults__ = new.__defaults__, new.__kwdefaults__
    return True


def _execute(mutant: Mutant, module: ModuleType, path: str) -> None:
    """Execute the mutant as the import system would, with the shapes checked where they were."""
    loader = module.__loader__
    assert isinstance(loader, importlib.machinery.SourceFileLoader)
    registered = sys.modules[module.__name__]
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(loader.source_to_code(mutant.source.encode(), path), module.__dict__)
    sys.modules[module.__name__] = registered


def _functions(path: str, name: str) -> list[FunctionType]:
    """All functions of a file that have this qualified name."""
    found = [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType
        and one.__code__.co_filename == path
        and one.__code__.co_qualname == name
    ]
    return sorted(found, key=lambda one: one.__code__.co_firstlineno)


def in_fork(run: Callable[[], int], cpu_s: float) -> int:
    """What a function returns in a fork, from 0 to 254; 255 where it did not end in time.

    Args:
        run: The function.
        cpu_s: Limit on its processor time.
    """
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.setsid()
            limit = int(cpu_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
            code = run()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20 * cpu_s  # other processes may have the cores
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 255
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            deadline += 20 * cpu_s
        time.sleep(0.005)
