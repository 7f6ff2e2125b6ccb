"""Clean-up when an event loop shuts down, and coroutines run to completion from any code."""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

CLOSE_S = 10.0
"""Seconds that coroutines may take to end after they were cancelled."""
SWITCH_S = 0.0002
"""Python's thread switch interval beside a loop that works while a model computes, in seconds.

The thread that computes needs the interpreter lock again after every torch operation. With Python's
default of 5 ms it would usually wait until the loop is idle, which doubles the time that the loop's
work takes from it.
"""
BLOCKED_S = 0.25
"""Seconds after which a step of a task counts as blocking its loop."""
TICK_S = 0.025
IDLE_S = 1.0


async def close_at_the_end(close: Callable[[], Awaitable[Any]]) -> AsyncGenerator[None]:
    """Run `close` when the running event loop shuts down.

    Start the generator with `anext` and keep a reference to it.
    """
    try:
        yield
    finally:
        await close()


def run_to_the_end(
    play: Callable[[], Coroutine[Any, Any, T]], enter_thread: Callable[[], None] | None = None
) -> T:
    """Run a coroutine to completion in a new event loop.

    This also works where an event loop is already running, as in a notebook: the coroutine then
    runs in a thread of its own.

    Args:
        play: Makes the coroutine.
        enter_thread: Called first in a thread of its own, for example to select its CUDA device.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(play())
    with ThreadPoolExecutor(1, initializer=enter_thread) as thread:
        return thread.submit(lambda: asyncio.run(play())).result()


class SharedLoop:
    """An event loop in a daemon thread, for coroutines from all threads of the process.

    The thread starts with the first coroutine. A forked process starts its own.

    Args:
        name: Name of the thread.
        watched: Whether to warn of code that blocks the loop for more than 250 ms, once per
            function, with its file and line.
    """

    def __init__(self, name: str, watched: bool = False) -> None:
        self.name = name
        self._watched = watched
        self._watchdog: _Watchdog | None = None
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine, from any thread."""
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        if self._watchdog is not None:
            self._watchdog.wake()
        return future

    def place(self) -> str | None:
        """The file and line that the loop executes now; None if it only waits."""
        thread = self._thread
        place = None if thread is None else _place(sys._current_frames().get(thread.ident or 0))
        return None if place is None else _in_words(place)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine and wait for its result. It is cancelled if nobody waits any longer.

        Args:
            work: The coroutine.
            timeout_s: Seconds to wait; None waits for ever.

        Raises:
            TimeoutError: When there is no result in time.
        """
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()  # it does nothing to one that is done

    def close(self) -> None:
        """Cancel unfinished coroutines and end the thread; the next coroutine starts another.

        A thread that code blocks for longer than `CLOSE_S` is left behind; it is a daemon.
        """
        with self._starting:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        blocked = wait([asyncio.run_coroutine_threadsafe(_cancel_all(), loop)], CLOSE_S).not_done
        self._closing.set()
        loop.call_soon_threadsafe(loop.stop)
        if blocked:
            log.warning("code blocks the event loop %r; its thread is left behind", self.name)
            return
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop, self._closing = asyncio.new_event_loop(), threading.Event()
                self._thread = threading.Thread(
                    target=_serve,
                    args=(self._loop, self._closing),
                    name=self.name,
                    daemon=True,
                )
                self._thread.start()
                self._watchdog = _Watchdog(self._loop, self._thread) if self._watched else None
            return self._loop


async def _cancel_all() -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@contextmanager
def quick_switches() -> Iterator[None]:
    """Have threads take turns in the interpreter every `SWITCH_S`."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _serve(loop: asyncio.AbstractEventLoop, closing: threading.Event) -> None:
    """Run the loop until it is closed: a task that raises SystemExit or stops the loop must not end
    it for all others."""
    while not closing.is_set():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue


class _Watchdog:
    """Warns of code that blocks an event loop, once per function.

    While the loop has tasks, a thread asks it for signs of life. A loop that gives none has either
    many short steps to run or a single long one, so the watchdog also looks whether the same task
    is running all the time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop, self._thread = loop, thread
        self._awake = threading.Event()
        self._named: set[tuple[str, str]] = set()
        threading.Thread(target=self._watch, name=f"{thread.name} watchdog", daemon=True).start()

    def wake(self) -> None:
        """Watch until the loop has no task left; call this after a task was submitted."""
        self._awake.set()

    def _watch(self) -> None:
        while self._thread.is_alive():
            self._awake.wait(IDLE_S)  # a task that came while `_answer` looked must not be missed
            answered = threading.Event()
            try:
                self._loop.call_soon_threadsafe(self._answer, answered)
            except RuntimeError:  # it was closed
                return
            self._wait(answered)
            time.sleep(TICK_S)

    def _answer(self, answered: threading.Event) -> None:
        if not asyncio.all_tasks(self._loop):
            self._awake.clear()
        answered.set()

    def _wait(self, answered: threading.Event) -> None:
        suspect, blocked_s, named = None, 0.0, False
        began, busy = time.monotonic(), _busy_s(self._thread)
        while not answered.wait(TICK_S):
            task = asyncio.current_task(self._loop)
            now, now_busy = time.monotonic(), _busy_s(self._thread)
            # If this thread was late, the whole process may have waited for the processor. Then
            # only the time counts in which the loop's thread did something.
            spent = now - began if now - began < 2 * TICK_S else now_busy - busy
            blocked_s = blocked_s + spent if task is suspect else 0.0
            suspect, began, busy = task, now, now_busy
            if blocked_s >= BLOCKED_S and not named:
                named = True
                self._name(_place(sys._current_frames().get(self._thread.ident or 0)))

    def _name(self, frame: FrameType | None) -> None:
        if frame is None:
            return
        function = (frame.f_code.co_filename, frame.f_code.co_qualname)
        if function in self._named:
            return
        self._named.add(function)
        log.warning(
            "%s blocks the event loop %r for more than %d ms, and all that runs there waits; await "
            "what takes long, or move it to a thread with `await asyncio.to_thread(function)`",
            _in_words(frame),
            self._thread.name,
            1000 * BLOCKED_S,
        )


def _busy_s(thread: threading.Thread) -> float:
    """CPU seconds of a thread; 0 where the system does not tell."""
    if sys.platform != "linux" or thread.ident is None:
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_STANDARD = sysconfig.get_path("stdlib")
_OWN = f"{Path(__file__).parent}/"


def _place(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own code, or else of a library; None for the standard
    library's alone."""
    library = None
    while frame is not None:
        file = frame.f_code.co_filename
        installed = file.startswith(_INSTALLED)
        if file != __file__ and (installed or not file.startswith((_STANDARD, "<"))):
            if not installed and not file.startswith(_OWN):
                return frame
            library = library or frame
        frame = frame.f_back
    return library


def _in_words(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} (in {code.co_qualname})"


_chat = SharedLoop("chat")


def run_in_background(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop that all environments of a process share, and wait.

    With a shared loop, clients of chat models reuse their connections, their limits apply to all
    environments together, and replies for several environments are written concurrently.
    """
    return _chat.run(work)
