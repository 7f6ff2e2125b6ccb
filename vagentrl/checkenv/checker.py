"""Runs all checks of an environment in processes of its own, whatever the environment does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from tqdm import tqdm

from vagentrl.checkenv.agreement import check_agreement
from vagentrl.checkenv.bench import Bench, open_bench, variable
from vagentrl.checkenv.contract import check_contract, check_misuse
from vagentrl.checkenv.effort import LONG, Effort
from vagentrl.checkenv.hostile import HOSTILE, answer_hostile
from vagentrl.checkenv.initial_states import check_initial_states
from vagentrl.checkenv.process import check_process
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

MOST_HANGS = 2
"""After so many calls without an answer the environment is not asked again."""

STARTUP_S = 60.0
"""Seconds in which a process must have started and made its environment."""


def check_environment(
    factory: EnvironmentFactory,
    name: str,
    effort: Effort = LONG,
    judge: Judge | None = None,
    progress: bool = False,
) -> Report:
    """Check an environment.

    It is played in child processes: one that crashes, hangs or ends its process fails the check
    that was running, and the other checks go on in a new process. One that hangs twice is not asked
    again.

    Args:
        factory: Makes the environment; it must be picklable.
        name: Name of the environment in the report.
        effort: How much to play.
        judge: Compares claims with the true state exactly (`vagentrl_judges.exact_state`); None
            leaves claims unchecked.
        progress: Show a bar of the checks on standard error.
    """
    seat = _Seat(factory, effort, judge, hash_seed=1)
    findings: list[Finding] = []
    skill, states = None, None
    try:
        modules = seat.ask(loaded_modules)
    except EnvError as error:
        seat.close()
        wanted = "an environment"
        made = failed("start", str(error), wanted, "see that the class can be made and imported")
        return Report(name, (made,))
    whole: dict[str, Callable[[_Seat], Checked]] = {
        **{title: partial(_Seat.ask, function=check) for title, check in CHECKS.items()},
        "the same in two processes": _two_processes,
        "rest of the process": _in_a_new_process,
        "hostile replies": _hostile,
    }
    broken: dict[str, str] = {}
    with tqdm(whole.items(), desc=name, leave=False, disable=not progress) as bar:
        for title, check in bar:
            bar.set_postfix_str(title)
            if seat.hangs >= MOST_HANGS:
                findings.append(unchecked(title, "it has hung too often to be asked again"))
                continue
            try:
                checked = check(seat)
            except EnvError as error:
                first = broken.setdefault(str(error), title)
                findings.append(_broken(title, error, first))
                continue
            findings += checked.findings
            skill, states = checked.skill or skill, checked.states or states
    modules = _modules_after_play(seat, modules)
    seat.close()
    extra, licence = extra_and_licence(modules)
    return Report(name, tuple(findings), skill, states, extra, licence)


class _Seat:
    """A process in which the environment is played; a new one after each that failed."""

    def __init__(
        self, factory: EnvironmentFactory, effort: Effort, judge: Judge | None, hash_seed: int
    ) -> None:
        self.settings = (factory, effort, judge)
        self.hash_seed = hash_seed
        self.hangs = 0
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
            # Its sets and dictionaries are ordered by this seed.
            with variable("PYTHONHASHSEED", str(self.hash_seed)):
                self._worker = ProcessWorker(partial(open_bench, *self.settings))
        answer: Future[Any] = self._worker.submit(function, *arguments)
        try:
            return answer.result(patience)
        except TimeoutError as error:
            self.close()
            self.hangs += 1
            raise EnvError(f"no answer within {patience:g} s: it hangs, or is too slow") from error
        except EnvError:
            self.close()  # what the environment left behind must not fail the next check
            raise

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _broken(check: str, error: EnvError, first: str) -> Finding:
    """The finding of a check that ended in an error; `first` is the check that met it first."""
    if first != check:
        return failed(check, f"the same error as under {first}", "an answer", "mend that one first")
    return failed(
        check,
        str(error),
        "an answer",
        "mend what the error names; data.workers: process confines a crash to its own episode",
    )


def _replays(bench: Bench) -> bool:
    return bench.environment.replays


def _in_a_new_process(seat: _Seat) -> Checked:
    """See what episodes change in a process in which none was played before."""
    other = _Seat(*seat.settings, hash_seed=1)
    try:
        return other.ask(check_process)
    finally:
        other.close()


def _two_processes(seat: _Seat) -> Checked:
    """Play the same episodes in two processes with different hash seeds."""
    other = _Seat(*seat.settings, hash_seed=2)
    try:
        if not seat.ask(_replays):
            reason = "its `replays` is False: episodes cannot be repeated"
            return Checked((unchecked("the same in two processes", reason),))
        finding = compare_processes(
            seat.ask(traces), other.ask(traces), seat.ask(openings), other.ask(openings)
        )
        return Checked((finding,))
    finally:
        other.close()


def _hostile(seat: _Seat) -> Checked:
    """Give every hostile reply; a crash or a hang costs its process and not the check."""
    wrong: list[str] = []
    given = 0
    for name in HOSTILE:
        if seat.hangs >= MOST_HANGS:
            break
        given += 1
        try:
            problem = seat.ask(answer_hostile, name)
        except EnvError as error:
            problem = str(error) if name in str(error) else f"{name}: {error}"
        if problem is not None:
            wrong.append(problem)
    if not wrong:
        told = f"{given} texts in 8 places: all are answered"
        return Checked((passed("hostile replies", told),))
    return Checked((failed(
        "hostile replies",
        f"{len(wrong)} of {given} texts: " + "; ".join(text[:300] for text in wrong[:4]),
        "an answer to every reply, which neither repeats it at length nor its placeholders",
        "raise nothing for what cannot be read; quote nothing that the agent wrote, or only with "
        "<image> taken out and a bounded length",
    ),))  # fmt: skip


def _modules_after_play(seat: _Seat, before: frozenset[str]) -> frozenset[str]:
    try:
        return before | seat.ask(loaded_modules)
    except EnvError:  # reported by the checks
        return before
