"""Functions that block, run in threads that nobody has to wait for."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Threads:
    """Runs each function in a thread of its own, for which the process does not wait at its end.

    Python cannot stop a thread, so the thread of a cancelled call goes on. A pool would fill up
    with such threads.

    Attributes:
        abandoned: Number of threads that still run although their calls were cancelled.
    """

    def __init__(self) -> None:
        self.abandoned = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function and wait for it.

        Raises:
            RuntimeError: No thread can be started, or the function raised what is no `Exception`.
            Exception: What the function raises.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: Exception | None) -> None:
            if future.cancelled():
                self.abandoned -= 1
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def call() -> None:
            result, error = None, None
            try:
                result = context.run(function)
            except BaseException as raised:  # boundary: code of the user's
                # SystemExit and the like would end the event loop, and not only this call.
                if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                    error = raised
                else:
                    error = RuntimeError(f"it raised {type(raised).__name__}")
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(settle, result, error)

        # `threading.Thread.start` would wait until the thread runs, and hold up the event loop.
        _thread.start_new_thread(call, ())
        try:
            return await future
        except asyncio.CancelledError:
            self.abandoned += future.cancelled()
            raise
