"""Environments at work beside the event loop, in threads or in processes of their own.

A worker holds one environment and plays one episode at a time. An environment that raises or hangs
is thrown away with its worker; the next episode gets a fresh one.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, Literal

from vagentrl.environment import Environment
from vagentrl.errors import EnvError
from vagentrl.formats import ReplyFormat
from vagentrl.types import Observation, Reply, StepResult

EnvironmentFactory = Callable[[], Environment]


def begin(
    environment: Environment, seed: int, transition_seed: int
) -> tuple[str, ReplyFormat, Observation]:
    """Start an episode; returns the system prompt, the reply format and the first observation."""
    observation = environment.reset(seed, transition_seed)
    return environment.system_prompt(), environment.format, observation


def step(environment: Environment, reply: Reply) -> StepResult:
    """Play one reply."""
    return environment.step(reply)


class ThreadWorker:
    """Something that is called in a daemon thread of its own.

    A daemon, so that an environment that hangs cannot keep the program from ending.

    Args:
        factory: Makes the thing, in the thread; it is the first argument of every call.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future, Callable, tuple] | None] = queue.SimpleQueue()
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
                future.set_result(function(subject, *arguments))
            except BaseException as error:  # the boundary: it is raised where the call waits
                future.set_exception(error)
        if subject is not None:
            subject.close()

    def submit(self, function: Callable, *arguments: Any) -> Future:
        future: Future = Future()
        self._tasks.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Stop after the current call, if that ever ends."""
        self._tasks.put(None)


class ProcessWorker:
    """An environment in a spawned process, which can be killed when it hangs.

    The factory and all that is sent must be picklable.
    """

    def __init__(self, factory: EnvironmentFactory) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, factory), daemon=True)
        self._process.start()
        theirs.close()
        self._caller = ThreadWorker(lambda: self._connection)

    def submit(self, function: Callable, *arguments: Any) -> Future:
        return self._caller.submit(_call, function, arguments)

    def close(self) -> None:
        self._process.kill()
        self._caller.close()


def _call(connection: Connection, function: Callable, arguments: tuple) -> Any:
    try:
        connection.send((function, arguments))
        answer, error = connection.recv()
    except (EOFError, OSError) as broken:
        raise EnvError(f"the environment's process died ({type(broken).__name__})") from broken
    if error is not None:
        raise error
    return answer


def _serve(connection: Connection, factory: EnvironmentFactory) -> None:
    environment = None
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            function, arguments = connection.recv()
            try:
                if environment is None:
                    environment = factory()
                connection.send((function(environment, *arguments), None))
            except Exception as error:  # the boundary: raised again on the other side
                connection.send((None, EnvError(f"{type(error).__name__}: {error}")))


class WorkerPool:
    """Workers for one environment.

    Args:
        factory: Makes an environment.
        name: What the environment is called in errors.
        kind: Threads for environments in pure Python, processes for those with OpenGL, physics or
            signals.
        size: Episodes that may be played at once.
        timeout_s: Seconds that one reset or step may take.
    """

    def __init__(
        self,
        factory: EnvironmentFactory,
        name: str,
        *,
        kind: Literal["thread", "process"] = "thread",
        size: int = 256,
        timeout_s: float = 60.0,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._make = lambda: (ThreadWorker if kind == "thread" else ProcessWorker)(factory)
        self._size = size
        self._idle: list[ThreadWorker | ProcessWorker] = []
        self._places: asyncio.Semaphore | None = None

    def open(self) -> None:
        """Call inside the event loop that the episodes will run in."""
        self._places = asyncio.Semaphore(self._size)

    @contextlib.asynccontextmanager
    async def episode(self) -> AsyncIterator[Callable]:
        """A place for one episode: an async callable that runs a function on an environment.

        Raises (from the callable):
            EnvError: When the environment raises or takes longer than `timeout_s`.
        """
        if self._places is None:
            raise EnvError("WorkerPool.open was not called in this event loop")
        async with self._places:
            worker = self._idle.pop() if self._idle else self._make()
            sound = False
            try:
                yield lambda function, *arguments: self._run(worker, function, arguments)
                sound = True
            finally:
                if sound:
                    self._idle.append(worker)
                else:
                    worker.close()

    async def _run(
        self, worker: ThreadWorker | ProcessWorker, function: Callable, arguments: tuple
    ) -> Any:
        try:
            answer = asyncio.wrap_future(worker.submit(function, *arguments))
            return await asyncio.wait_for(answer, self.timeout_s)
        except TimeoutError as error:
            raise EnvError(
                f"environment {self.name!r} did not answer {function.__name__} within "
                f"{self.timeout_s:g} s; raise timeout_s if it is meant to be that slow"
            ) from error
        except Exception as error:
            cause = error if isinstance(error, EnvError) else f"{type(error).__name__}: {error}"
            raise EnvError(
                f"environment {self.name!r} failed in {function.__name__}: {cause}"
            ) from error

    def close(self) -> None:
        """Stop all idle workers."""
        while self._idle:
            self._idle.pop().close()
