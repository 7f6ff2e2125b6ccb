"""`Equivalence`: whether two mathematical answers are equal, decided in processes that may die.

math-verify parses LaTeX and simplifies expressions, so an answer such as ``9^{9^{9^9}}`` can take
all time and memory. A worker process that takes too much is killed, and replaced at the next
request.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from queue import LifoQueue

from vagentrl.errors import ConfigError, EnvError

_SCRIPT = Path(__file__).with_name("equivalence_worker.py")
_START_S = 120.0
"""Seconds in which a worker must have imported its libraries."""
_LONGEST_LINE = 2**16


class _Stuck(Exception):
    """The worker took too much time or memory."""


class _Worker:
    """One worker process; one thread uses it at a time."""

    def __init__(self, memory_mb: int) -> None:
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, gold: str, answer: str, timeout_s: float) -> bool | None:
        """Whether the answers are equal; None if the gold answer cannot be parsed.

        Raises:
            EnvError: The worker does not start.
            _Stuck: It gave no reply, and has been killed.
        """
        process = self._process or self._start()
        request = json.dumps({"gold": gold, "answer": answer}).encode() + b"\n"
        try:
            return json.loads(_exchange(process, request, timeout_s))["equal"]
        except (_Stuck, OSError) as error:
            self.kill()
            raise _Stuck from error

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:  # closes its pipes and waits for its end
                pass

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-sP", str(_SCRIPT), str(self._memory_mb), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # nothing is left to write when a dead worker's pipe is closed
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        try:
            _exchange(self._process, b"", _START_S)
        except _Stuck:
            self.kill()
            raise EnvError(
                f"a process that compares answers did not start within {_START_S:g} s and "
                f"{self._memory_mb} MiB; try `import math_verify` in Python, or raise memory_mb"
            ) from None
        return self._process


class Equivalence:
    """Decides whether answers are equal, in a bounded number of worker processes.

    Args:
        workers: Number of processes; each needs about 70 MiB.
        timeout_s: Seconds for one comparison.
        memory_mb: Address space of a process in MiB.

    Raises:
        ConfigError: math-verify is not installed.
    """

    def __init__(self, workers: int, timeout_s: float, memory_mb: int) -> None:
        if find_spec("math_verify") is None:
            raise ConfigError("math-verify is not installed; run `pip install 'vagentrl[math]'`")
        self.timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="equivalence")
        self._idle: LifoQueue[_Worker] = LifoQueue()  # so that few are started if few are needed
        for _ in range(workers):
            self._idle.put(_Worker(memory_mb))
        weakref.finalize(self, _close, self._idle)

    async def equal(self, gold: str, answer: str) -> bool | None:
        """Whether two answers are equal; None if the gold answer cannot be parsed.

        Args:
            gold: The right answer, as text with LaTeX.
            answer: What is compared with it.

        Raises:
            TimeoutError: The comparison took too much time or memory.
            EnvError: A worker does not start.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._ask, gold, answer)

    def _ask(self, gold: str, answer: str) -> bool | None:
        worker = self._idle.get()
        try:
            return worker.ask(gold, answer, self.timeout_s)
        except _Stuck:
            raise TimeoutError from None
        finally:
            self._idle.put(worker)


@cache
def shared_equivalence(workers: int, timeout_s: float, memory_mb: int) -> Equivalence:
    """The `Equivalence` that all interactions of a process with these settings share."""
    return Equivalence(workers, timeout_s, memory_mb)


def _close(idle: LifoQueue[_Worker]) -> None:
    while not idle.empty():
        idle.get().kill()


def _exchange(process: subprocess.Popen[bytes], request: bytes, timeout_s: float) -> bytes:
    """Send a request, and read one line."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(request)
    deadline, line = time.monotonic() + timeout_s, b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.select(left):
                raise _Stuck
            chunk = os.read(process.stdout.fileno(), _LONGEST_LINE)
            line += chunk
            if not chunk or len(line) > _LONGEST_LINE:
                raise _Stuck
    return line
