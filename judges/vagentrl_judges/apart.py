"""Apart: runs a judge in a separate process, so that judging does not slow the rollout down."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import JudgeError

CLOSE_S = 5.0
"""Seconds that the judge's process may take to end."""


class Apart(Judge):
    """Runs a judge in a separate process.

    A judge that asks an endpoint needs one to three milliseconds of the Python interpreter for each
    claim; in a separate process it uses another core instead of the trainer's. The process starts
    with the first claim and ends with the trainer. If the process dies, the claims it was judging
    fail, and the next claim starts a new process.

    Args:
        judge: The judge to run; it must be picklable, as all judges of this package are.
    """

    def __init__(self, judge: Judge) -> None:
        self.inner = judge
        self.restarts = 0
        self._before: Mapping[str, float] = {}
        self._worker: _Worker | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_worker": None}

    @property
    def sees_images(self) -> bool:
        return self.inner.sees_images

    def identity(self) -> str:
        return self.inner.identity()

    def metrics(self) -> Mapping[str, float]:
        """Return the judge's metrics, summed over the current process and those that died."""
        now = self.inner.metrics() if self._worker is None else self._worker.metrics
        total = {name: value + self._before.get(name, 0.0) for name, value in now.items()}
        return {**total, "restarts": self.restarts}

    async def probe(self) -> None:
        """Ask the judge's endpoint from this process, which shares its settings and its key."""
        await self.inner.probe()

    async def close(self) -> None:
        """End the process; claims that it is judging fail."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._before = {
                name: value + self._before.get(name, 0.0) for name, value in worker.metrics.items()
            }
            await asyncio.to_thread(worker.close)

    async def judge(self, claim: Claim) -> Verdict:
        if self._worker is None or self._worker.dead:
            if self._worker is not None:
                self._before = self.metrics()
                self.restarts += 1
            self._worker = _Worker(self.inner)
        if not self.inner.sees_images:
            claim = replace(claim, images=())  # pictures are large to send
        return await asyncio.wrap_future(self._worker.submit(claim))


class _Worker:
    """A handle on the judge's process.

    Attributes:
        metrics: The judge's metrics as of its last answer.
        dead: Whether the process has ended.
    """

    def __init__(self, judge: Judge) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote, judge), daemon=True)
        self._process.start()
        remote.close()
        self.metrics = judge.metrics()
        self.dead = False
        self._numbers = itertools.count()
        self._pending: dict[int, Future[Verdict]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="Apart", daemon=True).start()

    def submit(self, claim: Claim) -> Future[Verdict]:
        future: Future[Verdict] = Future()
        future.set_running_or_notify_cancel()  # so that a cancelled waiter cannot cancel it
        with self._lock:
            number = next(self._numbers)
            self._pending[number] = future
            if not self.dead:
                try:
                    self._connection.send((number, claim))
                    return future
                except OSError:
                    pass  # the process has just died, and `_listen` may not see this future
            self._pending.pop(number, None)
        future.set_exception(self._ended())
        return future

    def close(self) -> None:
        """Let the process end, and end it if it does not."""
        self._process.terminate()
        self._process.join(CLOSE_S)
        if self._process.is_alive():
            self._process.kill()

    def _listen(self) -> None:
        try:
            while True:
                number, score, text, by_claim, self.metrics = self._connection.recv()
                future = self._pending.pop(number)
                if score is not None:
                    future.set_result(Verdict(score, text))
                else:
                    future.set_exception(JudgeError(text, caused_by_claim=by_claim))
        except (EOFError, OSError):
            self._process.join()
        with self._lock:
            self.dead = True
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(self._ended())

    def _ended(self) -> JudgeError:
        return JudgeError(
            f"the judge's process ended with exit code {self._process.exitcode} before the "
            "verdict; see its output above. The next claim starts a new process"
        )


def _serve(connection: Connection, judge: Judge) -> None:
    """Judge claims concurrently until the connection closes. Runs in the separate process.

    Answers are plain numbers and texts: an error of a class that cannot be pickled, or not be read
    back, would never arrive.
    """

    async def answer(number: int, claim: Claim) -> None:
        score, text, by_claim = None, "", False
        try:
            verdict = await judge(claim)
            score, text = float(verdict.score), str(verdict.reason)
        except JudgeError as error:
            text, by_claim = str(error), error.caused_by_claim
        except Exception as error:  # every claim must get an answer
            text = f"{type(error).__name__} in the judge: {error}"
            by_claim = not isinstance(error, OSError)  # its code broke while it read the claim
        connection.send((number, score, text, by_claim, _counters(judge)))

    def listen(loop: asyncio.AbstractEventLoop, closed: asyncio.Event) -> None:
        try:
            while True:
                asyncio.run_coroutine_threadsafe(answer(*connection.recv()), loop)
        except (EOFError, OSError):  # the trainer closed the connection or ended
            loop.call_soon_threadsafe(closed.set)

    async def work() -> None:
        closed = asyncio.Event()
        arguments = (asyncio.get_running_loop(), closed)
        threading.Thread(target=listen, args=arguments, daemon=True).start()
        await closed.wait()

    asyncio.run(work())


def _counters(judge: Judge) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in judge.metrics().items()}
    except Exception:  # the boundary: counting must not cost a verdict
        return {}
