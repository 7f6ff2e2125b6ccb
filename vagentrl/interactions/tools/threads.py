"""A function that blocks, run in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


async def in_daemon_thread(function: Callable[[], Any]) -> Any:
    """Run a function in a thread of its own, and wait.

    When the waiting coroutine is cancelled, the thread goes on without it, because Python cannot
    stop a thread. It is a daemon, so the process can end. A pool would be filled by such threads.

    Raises:
        RuntimeError: No thread can be started.
        BaseException: What the function raises.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # boundary: a tool of the user's, SystemExit included
            # A future cannot hold a StopIteration.
            stop = isinstance(raised, StopIteration)
            error = RuntimeError("StopIteration") if stop else raised
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return await future
