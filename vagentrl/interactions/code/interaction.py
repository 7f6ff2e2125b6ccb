"""`CodeInteraction`: runs the agent's programs against tests, and says what failed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from vagentrl.errors import ConfigError, RowError, seen
from vagentrl.interactions.code.cases import Case, Suite, last_program, read_tests
from vagentrl.interactions.code.probing import confinements
from vagentrl.interactions.code.sandbox import CONFINEMENTS, Confinement, Limits, Run, Sandbox
from vagentrl.interactions.messages import shortened
from vagentrl.interactions.problem import Problem, ProblemInteraction
from vagentrl.interactions.settings import read_settings

_SHOWN = 300
"""Characters of an input, an output or an error that the agent is shown."""
_LONGEST_PROGRAM = 100_000
"""Characters."""


@dataclass(frozen=True)
class CodeSettings:
    """Settings of `CodeInteraction`.

    Args:
        scoring: ``share`` scores the share of tests passed, ``all`` 1 if all are passed, else 0.
        reveal_tests: Whether the agent is shown the first test that failed.
        wall_s: Seconds for a run of the program: one for each case, one for all checks.
        cpu_s: Seconds of CPU time for a run.
        memory_mb: Address space of a run in MiB, the interpreter's own included.
        output_bytes: Bytes that a run may write.
        writable_mb: Largest file that a run may write in its working directory, in MiB. The number
            of files is not limited; with 0 it writes none.
        threads: Whether programs may start threads. Only memory then limits their number.
        budget_s: Seconds for all tests of a reply; tests that are not reached are failed.
        concurrency: Number of programs that run at once; None takes the number of CPUs.
        python: The interpreter for the programs, 3.11 or newer; None takes the trainer's.
        readable: Files and folders that programs may read, besides the interpreter's own.
        allow_unconfined: What may stay unconfined on a machine that cannot confine it: any of
            ``network``, ``processes``, ``files`` and ``memory``. Programs that may start
            processes may leave some behind.
    """

    scoring: Literal["share", "all"] = "share"
    reveal_tests: bool = True
    wall_s: float = 5.0
    cpu_s: int = 5
    memory_mb: int = 1024
    output_bytes: int = 65536
    writable_mb: int = 0
    threads: bool = False
    budget_s: float = 30.0
    concurrency: int | None = None
    python: str | None = None
    readable: list[str] = field(default_factory=list)
    allow_unconfined: list[Confinement] = field(default_factory=list)

    def __post_init__(self) -> None:
        positive = ("wall_s", "cpu_s", "memory_mb", "output_bytes", "budget_s", "concurrency")
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; give a positive number")
        if self.writable_mb < 0:
            raise ConfigError(f"writable_mb is {self.writable_mb}; give 0 or more")
        unknown = [name for name in self.allow_unconfined if name not in CONFINEMENTS]
        if unknown:
            raise ConfigError(
                f"allow_unconfined has {', '.join(unknown)}; give any of {', '.join(CONFINEMENTS)}"
            )


@cache
def _shared_threads(count: int) -> ThreadPoolExecutor:
    """Threads of all interactions of a process, so that a limit holds for all of them."""
    return ThreadPoolExecutor(count, thread_name_prefix="code")


@dataclass(frozen=True)
class _Verdict:
    """What the tests showed; `failure` tells of the first that failed, and is empty for none."""

    passed: int
    tests: int
    failure: str = ""
    timeouts: int = 0


class CodeInteraction(ProblemInteraction[Suite]):
    """Runs the last block of Python in a reply, confined and within limits.

    Args:
        config: The fields of `CodeSettings`.

    Raises:
        ConfigError: This machine cannot confine programs as the settings ask, or lacks the
            interpreter.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        settings = read_settings(config, CodeSettings, "CodeInteraction")
        self.settings = settings
        limits = Limits(
            settings.wall_s,
            settings.cpu_s,
            settings.memory_mb,
            settings.output_bytes,
            settings.writable_mb,
            settings.threads,
        )
        python = shutil.which(settings.python or sys.executable)
        if python is None:
            raise ConfigError(f"there is no interpreter {settings.python!r}; give the path of one")
        python = os.path.abspath(python)
        confined = confinements(settings.allow_unconfined, python)
        self._sandbox = Sandbox(limits, confined, python, settings.readable)
        workers = settings.concurrency or os.cpu_count() or 1
        self._threads = _shared_threads(workers)

    def read_truth(self, tests: Any = None, language: str = "python", **kwargs: Any) -> Suite:
        """The tests of a row.

        Args:
            tests: See `read_tests`.
            language: Only ``python``.
            **kwargs: Not used.

        Raises:
            RowError: The tests cannot be read, or the language is another one.
        """
        if language != "python":
            raise RowError(f"language is {seen(language)}; CodeInteraction runs python")
        return read_tests(tests)

    async def judge(
        self, reply: str, problem: Problem[Suite]
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Run the program of a reply; the conversation ends when it passes all tests."""
        tests, program = problem.truth, last_program(reply)
        if program is None:
            verdict = _Verdict(0, len(tests), "Your reply has no block of Python.")
        elif len(program) > _LONGEST_PROGRAM:
            long = f"Your program has more than {_LONGEST_PROGRAM} characters and was not run."
            verdict = _Verdict(0, len(tests), long)
        else:
            loop = asyncio.get_running_loop()
            verdict = await loop.run_in_executor(self._threads, self._test, program, tests)
        solved = verdict.passed == verdict.tests
        share = verdict.passed / verdict.tests
        score = share if self.settings.scoring == "share" else float(solved)
        metrics = {
            "solved": float(solved),
            "passed": share,
            "timeouts": float(verdict.timeouts),
            "no_program": float(program is None),
        }
        return solved, self._told(verdict), score, metrics

    def _told(self, verdict: _Verdict) -> str:
        passes = f"Your program passes {verdict.passed} of {verdict.tests} tests."
        if verdict.passed == verdict.tests:
            return passes
        asked = "Answer again with the whole program between ```python and ```."
        return "\n".join([passes, verdict.failure, asked])

    def _test(self, program: str, tests: Suite) -> _Verdict:
        if tests.checks:
            run = self._sandbox.run(program, checks=tests.checks)
            return self._verdict_of_checks(run, tests.checks)
        passed, timeouts, failure = 0, 0, ""
        deadline = time.monotonic() + self.settings.budget_s
        for number, case in enumerate(tests.cases, start=1):
            if time.monotonic() > deadline:
                failure = failure or f"There was no time left for test {number}."
                break
            run = self._sandbox.run(program, case.input)
            if run.ended == "finished" and case.matches(run.output):
                passed += 1
                continue
            timeouts += run.ended == "time"
            failure = failure or "\n".join(self._failure(number, case, run))
        return _Verdict(passed, len(tests), failure, timeouts)

    def _failure(self, number: int, case: Case, run: Run) -> Iterator[str]:
        yield f"Test {number} fails: {self._ending(run)}"
        if self.settings.reveal_tests:
            yield f"Input: {shortened(case.input, _SHOWN)}"
            yield f"Expected output: {shortened(case.output, _SHOWN)}"
            yield f"Output: {shortened(run.output, _SHOWN)}"

    def _verdict_of_checks(self, run: Run, checks: tuple[str, ...]) -> _Verdict:
        failures = run.failures
        passed, timed_out = failures.count(""), int(run.ended == "time")
        if passed == len(checks):
            return _Verdict(passed, len(checks))
        first = next((i for i, failure in enumerate(failures) if failure), len(failures))
        if first < len(failures):
            reason = shortened(failures[first], _SHOWN)
        elif run.ended == "finished":
            reason = "the program ended before it."
        else:
            reason = self._ending(run)
        told = f"Test {first + 1} fails: {reason}"
        if self.settings.reveal_tests:
            told += f"\nTest {first + 1}: {shortened(checks[first], _SHOWN)}"
        return _Verdict(passed, len(checks), told, timed_out)

    def _ending(self, run: Run) -> str:
        match run.ended:
            case "time":
                return (
                    f"the program ran for more than {self.settings.wall_s:g} s, or "
                    f"{self.settings.cpu_s} s of CPU time, and was killed."
                )
            case "output":
                return (
                    f"the program wrote more than {self.settings.output_bytes} bytes and was killed"
                )
            case "failed":
                return shortened(run.error, _SHOWN)
            case "finished":
                return "the output is not the expected one."
