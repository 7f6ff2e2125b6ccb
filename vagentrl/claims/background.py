"""An event loop beside everything else."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

SWITCH_S = 0.0002
"""How long a thread may keep the interpreter from another that wants it.

The sampling thread wants it after every operation of torch's, and with Python's 5 ms it waits each
time until judging has nothing more to do: judging then costs twice what it takes.
"""


class BackgroundLoop:
    """Runs coroutines in an event loop of its own, in a daemon thread.

    Connections that they open live as long as the loop, from one iteration to the next.
    """

    def __init__(self) -> None:
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_s, SWITCH_S))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin; from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what is not done, and end the thread."""
        self.submit(_cancel_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        sys.setswitchinterval(self._switch_s)


async def _cancel_all() -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
