"""What outlives a coroutine but not its event loop, and loops beside one that runs already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


async def close_at_the_end(close: Callable[[], Awaitable[Any]]) -> AsyncGenerator[None]:
    """To be started with `anext` and kept: suspended as long as the running event loop, whose end
    resumes it."""
    try:
        yield
    finally:
        await close()


def run_to_the_end(play: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run in an event loop of its own, also where one is running already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(play())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(play())).result()
