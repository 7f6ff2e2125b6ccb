"""Runs all checks of an environment in processes of its own, whatever the environment does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from vagentrl.checkenv.agreement import check_agreement
from vagentrl.checkenv.bench import Bench, open_bench
from vagentrl.checkenv.contract import check_contract, check_misuse
from vagentrl.checkenv.effort import LONG, Effort
from vagentrl.checkenv.hostile import HOSTILE, answer_hostile
from vagentrl.checkenv.initial_states import check_initial_states
from vagentrl.checkenv.provenance import extra_and_licence, loaded_modules
from vagentrl.checkenv.report import Checked, Finding, Report, failed, passed, unchecked
from vagentrl.checkenv.resources import check_close, check_memory
from vagentrl.checkenv.skill import check_skill
from vagentrl.checkenv.traces import (
    check_group,
    check_independence,
    compare_processes,
    openings,
    traces,
)
from vagentrl.claims.judge import Judge
from vagentrl.errors import EnvError
from vagentrl.rollout.worker_kinds import ProcessWorker
from vagentrl.rollout.workers import EnvironmentFactory

CHECKS: dict[str, Callable[[Bench], Checked]] = {
    "contract": check_contract,
    "misuse": check_misuse,
    "independence": check_independence,
    "members of a group": check_group,
    "initial states": check_initial_states,
    "agreement": check_agreement,
    "skill": check_skill,
    "memory": check_memory,
    "close": check_close,
}
"""The checks that need a single process, in the order in which they are run."""

STARTUP_S = 60.0
"""Seconds in which a process must have started and made its environment."""


def check_environment(
    factory: EnvironmentFactory, name: str, effort: Effort = LONG, judge: Judge | None = None
) -> Report:
    """Check an environment.

    It is played in child processes: one that crashes, hangs or ends its process fails the check
    that was running, and the other checks go on in a new process.

    Args:
        factory: Makes the environment; it must be picklable.
        name: Name of the environment in the report.
        effort: How much to play.
        judge: Compares claims with the true state exactly (`vagentrl_judges.exact_state`); None
            leaves claims unchecked.
    """
    seat = _Seat(factory, effort, judge, hash_seed=1)
    findings: list[Finding] = []
    measured: dict[str, Any] = {}
    try:
        modules = seat.ask(loaded_modules)
    except EnvError as error:
        seat.close()
        wanted = "an environment"
        made = failed("start", str(error), wanted, "see that the class can be made and imported")
        return Report(name, (made,))
    for title, check in CHECKS.items():
        try:
            checked = seat.ask(check)
        except EnvError as error:
            findings.append(_broken(title, error))
            continue
        findings += checked.findings
        measured |= {k: v for k, v in vars(checked).items() if k != "findings" and v is not None}
    findings.append(_two_processes(seat))
    findings.append(_hostile(seat))
    modules = _modules_after_play(seat, modules)
    seat.close()
    extra, licence = extra_and_licence(modules)
    return Report(name, tuple(findings), extra=extra, licence=licence, **measured)


class _Seat:
    """A process in which the environment is played; a new one after each that failed."""

    def __init__(
        self, factory: EnvironmentFactory, effort: Effort, judge: Judge | None, hash_seed: int
    ) -> None:
        self.settings = (factory, effort, judge)
        self.hash_seed = hash_seed
        self._worker: ProcessWorker | None = None

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with the process's bench.

        Raises:
            EnvError: When the environment raises, hangs or ends its process.
        """
        effort = self.settings[1]
        patience = effort.seconds + effort.patience_s
        if self._worker is None:
            patience += STARTUP_S
            with _hash_seed(self.hash_seed):
                self._worker = ProcessWorker(partial(open_bench, *self.settings))
        answer: Future[Any] = self._worker.submit(function, *arguments)
        try:
            return answer.result(patience)
        except TimeoutError as error:
            self.close()
            raise EnvError(f"no answer within {patience:g} s: it hangs, or is too slow") from error
        except EnvError:
            self.close()  # what the environment left behind must not fail the next check
            raise

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


@contextmanager
def _hash_seed(seed: int) -> Iterator[None]:
    """Let processes that start in the block order their sets and dictionaries by this seed."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def _broken(check: str, error: EnvError) -> Finding:
    return failed(
        check,
        str(error),
        "an answer",
        "mend the error at the line that is named; data.workers: process confines a crash to its "
        "own episode",
    )


def _replays(bench: Bench) -> bool:
    return bench.environment.replays


def _two_processes(seat: _Seat) -> Finding:
    """Play the same episodes in two processes with different hash seeds."""
    other = _Seat(*seat.settings, hash_seed=2)
    try:
        if not seat.ask(_replays):
            reason = "its `replays` is False: episodes cannot be repeated"
            return unchecked("the same in two processes", reason)
        return compare_processes(
            seat.ask(traces), other.ask(traces), seat.ask(openings), other.ask(openings)
        )
    except EnvError as error:
        return _broken("the same in two processes", error)
    finally:
        other.close()


def _hostile(seat: _Seat) -> Finding:
    """Give every hostile reply; a crash or a hang costs its process and not the check."""
    wrong: list[str] = []
    for name in HOSTILE:
        try:
            problem = seat.ask(answer_hostile, name)
        except EnvError as error:
            problem = str(error) if name in str(error) else f"{name}: {error}"
        if problem is not None:
            wrong.append(problem)
    if not wrong:
        return passed("hostile replies", f"{len(HOSTILE)} texts in 8 places: all are answered")
    return failed(
        "hostile replies",
        f"{len(wrong)} of {len(HOSTILE)} texts: " + "; ".join(text[:200] for text in wrong[:4]),
        "an answer to every reply, which neither repeats it at length nor its placeholders",
        "quote nothing that the agent wrote, or only with <image> taken out and a bounded length",
    )


def _modules_after_play(seat: _Seat, before: frozenset[str]) -> frozenset[str]:
    try:
        return before | seat.ask(loaded_modules)
    except EnvError:  # reported by the checks
        return before
