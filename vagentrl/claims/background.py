"""An event loop in a background thread."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

CLOSE_S = 10.0
"""Seconds that coroutines may take to end after they were cancelled."""
SWITCH_S = 0.0002
"""Python's thread switch interval while a background loop is open, in seconds.

The sampling thread needs the interpreter lock again after every torch operation. With Python's
default of 5 ms it would usually wait until the judging thread is idle, which doubles the time that
judging takes from sampling.
"""


class BackgroundLoop:
    """Runs coroutines in its own event loop in a daemon thread.

    The loop, and the connections that its coroutines open, stay open between iterations.
    """

    def __init__(self) -> None:
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_s, SWITCH_S))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine. May be called from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel unfinished coroutines and end the thread.

        A thread that code blocks for longer than `CLOSE_S` is left behind; it is a daemon.
        """
        sys.setswitchinterval(self._switch_s)
        try:
            self.submit(_cancel_all()).result(CLOSE_S)
        except TimeoutError:
            log.warning("a judge blocks its event loop; its thread is left behind")
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _cancel_all() -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
