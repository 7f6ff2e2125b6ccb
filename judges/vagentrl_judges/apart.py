"""Apart: a judge in a process of its own, so that judging takes no time from the rollout."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import JudgeError

Answer = tuple[int, Verdict | JudgeError, Mapping[str, float]]
"""The number of a claim, what came of it, and the judge's metrics."""


class Apart(Judge):
    """Runs a judge in a process of its own.

    A judge that asks an endpoint keeps a Python interpreter busy for a millisecond or two for each
    claim; in a process of its own that is another core's time. The process starts with the first
    claim and ends with this one; if it dies, what it was judging is a failure and the next claim
    starts another.

    Args:
        judge: The judge to run; it must be picklable, as those that ship are.
    """

    def __init__(self, judge: Judge) -> None:
        self.inner = judge
        self.restarts = 0
        self._before: Mapping[str, float] = {}
        self._worker: _Worker | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_worker": None}

    def identity(self) -> str:
        return self.inner.identity()

    def metrics(self) -> Mapping[str, float]:
        """Those of the process as of its last answer, added to those of the ones before it."""
        now = self.inner.metrics() if self._worker is None else self._worker.metrics
        total = {name: value + self._before.get(name, 0.0) for name, value in now.items()}
        return {**total, "restarts": self.restarts}

    async def judge(self, claim: Claim) -> Verdict:
        if self._worker is None or self._worker.dead:
            if self._worker is not None:
                self._before = self.metrics()
                self.restarts += 1
            self._worker = _Worker(self.inner)
        return await asyncio.wrap_future(self._worker.submit(claim))


class _Worker:
    """The process, seen from ours.

    Attributes:
        metrics: Of the judge, as of its last answer.
        dead: Whether it has ended.
    """

    def __init__(self, judge: Judge) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, judge), daemon=True)
        self._process.start()
        theirs.close()
        self.metrics = judge.metrics()
        self.dead = False
        self._numbers = itertools.count()
        self._asked: dict[int, Future[Verdict]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="Apart", daemon=True).start()

    def submit(self, claim: Claim) -> Future[Verdict]:
        future: Future[Verdict] = Future()
        future.set_running_or_notify_cancel()  # it goes on even if nobody waits any more
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = future
            if not self.dead:
                try:
                    self._ours.send((number, claim))
                    return future
                except OSError:
                    pass  # it has just died; the listener may have looked already
            self._asked.pop(number, None)
        future.set_exception(self._ended())
        return future

    def _listen(self) -> None:
        try:
            while True:
                number, outcome, self.metrics = self._ours.recv()
                future = self._asked.pop(number)
                if isinstance(outcome, Verdict):
                    future.set_result(outcome)
                else:
                    future.set_exception(outcome)
        except (EOFError, OSError):
            self._process.join()
        with self._lock:
            self.dead = True
            left, self._asked = self._asked, {}
        for future in left.values():
            future.set_exception(self._ended())

    def _ended(self) -> JudgeError:
        return JudgeError(
            f"the judge's process ended with exit code {self._process.exitcode} before the "
            "verdict; its own messages are above, and the next claim starts another"
        )


def _serve(theirs: Connection, judge: Judge) -> None:
    """The process, seen from within: as many claims at a time as come."""

    async def answer(number: int, claim: Claim) -> None:
        outcome: Verdict | JudgeError
        try:
            outcome = await judge(claim)
        except JudgeError as error:
            outcome = error
        except Exception as error:  # the boundary: it must not be waited for in vain
            outcome = JudgeError(f"{type(error).__name__} in the judge: {error}")
        theirs.send((number, outcome, dict(judge.metrics())))

    def listen(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
        try:
            while True:
                asyncio.run_coroutine_threadsafe(answer(*theirs.recv()), loop)
        except (EOFError, OSError):  # the trainer is done with us
            loop.call_soon_threadsafe(over.set)

    async def work() -> None:
        over = asyncio.Event()
        arguments = (asyncio.get_running_loop(), over)
        threading.Thread(target=listen, args=arguments, daemon=True).start()
        await over.wait()

    asyncio.run(work())
