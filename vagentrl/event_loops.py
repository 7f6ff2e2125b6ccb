"""Clean-up when an event loop shuts down, and coroutines run to completion from any code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


async def close_at_the_end(close: Callable[[], Awaitable[Any]]) -> AsyncGenerator[None]:
    """Run `close` when the running event loop shuts down.

    Start the generator with `anext` and keep a reference to it.
    """
    try:
        yield
    finally:
        await close()


def run_to_the_end(play: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to completion in a new event loop.

    This also works where an event loop is already running, as in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(play())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(play())).result()


_starting = threading.Lock()
_shared: list[asyncio.AbstractEventLoop] = []


def run_in_background(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop that all environments of a process share, and wait.

    With a shared loop, clients of chat models reuse their connections, their limits apply to all
    environments together, and replies for several environments are written concurrently.
    """
    with _starting:
        if not _shared:
            _shared.append(asyncio.new_event_loop())
            threading.Thread(target=_shared[0].run_forever, name="chat", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _shared[0]).result()
