"""The two kinds of workers: a thread, and a process that can be killed with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import resource
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vagentrl.errors import EnvError, where

CLOSE_S = 10.0
"""Seconds that an environment may take to close before its process is killed."""
OOM_SCORE = "500"
"""Where memory runs out, Linux ends the process of an environment before the trainer's (0)."""
_PR_SET_PDEATHSIG = 1
"""Linux's prctl(2): the signal that a process gets when its parent's thread ends."""


class ThreadWorker:
    """Owns an object, usually an environment, and calls functions with it in a thread of its own.

    The thread is a daemon, so that an environment that hangs cannot keep the program from ending.

    Args:
        factory: Makes the object, in the thread. It is passed as the first argument of every call.
        closes: Whether to close the object at the end. An object that others still use must not be
            closed.
    """

    def __init__(self, factory: Callable[[], Any], closes: bool = True) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future, Callable, tuple] | None] = queue.SimpleQueue()
        self._closes = closes
        threading.Thread(target=self._work, args=(factory,), daemon=True).start()

    def _work(self, factory: Callable[[], Any]) -> None:
        subject = None
        while (task := self._tasks.get()) is not None:
            future, function, arguments = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if subject is None:
                    subject = factory()
                answer = function(subject, *arguments)
            except BaseException as error:  # an environment's SystemExit must not end the trainer
                future.set_exception(_as_env_error(error))
            else:
                future.set_result(answer)
        if subject is not None and self._closes:
            subject.close()

    @property
    def alive(self) -> bool:
        """Whether it can still be called; a thread always can."""
        return True

    def submit(self, function: Callable, *arguments: Any) -> Future:
        """Call a function in the thread. The future raises an `EnvError` for any exception."""
        future: Future = Future()
        self._tasks.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Stop the thread after the current call. A call that hangs is not interrupted."""
        self._tasks.put(None)


class ProcessWorker:
    """Runs an environment, or another object with `close`, in a spawned process, which can be
    killed when it hangs.

    The process has a session of its own, so that what it starts in there is killed with it, and an
    interrupt from the keyboard reaches the trainer alone. It ends itself when the trainer is gone.
    The factory, and the functions and arguments of calls, must be picklable.

    Args:
        factory: Makes the object, in the process.
        memory_gb: GiB of memory that the process may take; what asks for more gets a
            `MemoryError`. None sets no limit.
    """

    def __init__(self, factory: Callable[[], Any], memory_gb: float | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, factory, memory_gb), daemon=True
        )
        self._caller = ThreadWorker(lambda: ours, closes=False)
        # By a thread that lives until the process has ended: see `_end_with_the_thread`.
        if threading.current_thread() is threading.main_thread():
            self._process.start()
        else:
            self._caller.submit(lambda _: self._process.start()).result()
        theirs.close()
        self._answer: Future | None = None

    @property
    def alive(self) -> bool:
        """Whether its process is running."""
        return self._process.is_alive()

    def submit(self, function: Callable, *arguments: Any) -> Future:
        self._answer = self._caller.submit(self._call, function, arguments)
        return self._answer

    def _call(self, ours: Connection, function: Callable, arguments: tuple) -> Any:
        try:
            ours.send((function, arguments))
            answer, error = ours.recv()
        except (EOFError, OSError) as broken:
            self._process.join(CLOSE_S)
            self._kill()
            self._process.join()
            raise EnvError(f"its process ended {_how(self._process.exitcode)}") from broken
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """End the process after it has closed its environment; kill it if a call is running, or if
        closing takes longer than `CLOSE_S`."""
        if self._answer is not None and not self._answer.done():
            self._kill()
        self._caller.submit(self._end)
        self._caller.close()

    def _end(self, ours: Connection) -> None:
        ours.close()
        self._process.join(CLOSE_S)
        self._kill()

    def _kill(self) -> None:
        """Kill the process and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or not begun
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()


def _serve(theirs: Connection, factory: Callable[[], Any], memory_gb: float | None) -> None:
    _set_apart(memory_gb)
    environment = None
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):  # the trainer closed the pipe
        while True:
            function, arguments = theirs.recv()
            try:
                if environment is None:
                    environment = factory()
                theirs.send((function(environment, *arguments), None))
            # ProcessWorker raises it again in the trainer's process.
            except (Exception, SystemExit) as error:
                theirs.send((None, _as_env_error(error)))
    if environment is not None:
        environment.close()


def _set_apart(memory_gb: float | None) -> None:
    """See to it that this process harms neither the trainer nor outlives it."""
    os.setsid()
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    if memory_gb is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory_gb * 2**30), hard))
    _end_with_the_thread()
    threading.Thread(target=_end_with_the_trainer, daemon=True).start()


def _end_with_the_thread() -> None:
    """Let Linux kill this process when the thread that has started it ends, as it does when the
    trainer is killed.

    `_end_with_the_trainer` also kills what this process has started, but its thread never runs
    while the environment hangs in native code that holds Python's lock.
    """
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_the_trainer() -> None:
    """Wait until the trainer is gone, and end this process also while its environment hangs."""
    trainer = multiprocessing.parent_process()
    assert trainer is not None
    trainer.join()
    os.killpg(0, signal.SIGKILL)


def _how(exit_code: int | None) -> str:
    """How a process ended: by a signal, such as SIGSEGV, or with an exit code."""
    if exit_code is not None and exit_code < 0:
        return f"by {signal.Signals(-exit_code).name}"
    return f"with exit code {exit_code}"


def _as_env_error(error: BaseException) -> EnvError:
    """Wrap an error in a picklable `EnvError` that names the file and line where it arose."""
    if isinstance(error, EnvError):
        return error
    wrapped = EnvError(where(error))
    wrapped.__cause__ = error
    return wrapped
