"""Helpers for asyncio event loops: clean-up at their end, and running one inside another."""

from __future__ import annotations

import asyncio
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
    """Run a coroutine in a new event loop, even if one is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(play())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(play())).result()
