"""Writing a checkpoint in a thread, while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar

_wanted: ContextVar[bool] = ContextVar("background_wanted", default=False)


@contextmanager
def in_background() -> Iterator[None]:
    """Inside this context checkpoints are written in the background, where that is possible.

    A save then returns when it has a copy of the state in main memory. Outside of it a save returns
    when the checkpoint is on the disk under its name, so whoever looks at, links or removes files
    after a save can rely on them.
    """
    before = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(before)


def background_wanted() -> bool:
    """Whether checkpoints are to be written in the background."""
    return _wanted.get()


class BackgroundWrite:
    """A thread that writes one checkpoint at a time.

    An error of a write is raised once, where somebody next waits or asks.
    """

    def __init__(self) -> None:
        self._write: Future[None] | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write, when the write before has ended.

        Args:
            write: Called in the thread. It must not use what training changes.

        Raises:
            Exception: What the write before has raised; this one is then not begun.
        """
        self.wait()
        # A thread of an executor is waited for at the end of the program, whatever ends it.
        thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._write = thread.submit(write)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Return when nothing is being written.

        If this is interrupted (Ctrl-C), the write goes on, and can be waited for again.

        Raises:
            Exception: What the write has raised.
        """
        if self._write is not None:
            wait([self._write])
            ended, self._write = self._write, None
            ended.result()

    def raise_if_failed(self) -> None:
        """Return at once.

        Raises:
            Exception: What a write has raised that has ended.
        """
        if self._write is not None and self._write.done():
            self.wait()
