"""How a vLLM server is talked to, and what can go wrong."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpx

from vagentrl.errors import EngineError
from vagentrl.event_loops import close_at_the_end

CONNECT_S = 10.0
"""For a connection."""
KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
]
"""A machine that is gone says nothing, not even that it is."""


class Connections:
    """What belongs to one event loop.

    Attributes:
        loop: The loop.
        client: Holds the connections.
        one_at_a_time: Looks after the server.
        silent: Done when the server is given up: since when nothing was heard of it.
        life: Closes the connections at the loop's end.
        watch: The task that gives the server up.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        transport = httpx.AsyncHTTPTransport(limits=limits, socket_options=KEEP_ALIVE)
        timeout = httpx.Timeout(None, connect=CONNECT_S)  # a long reply takes its time
        self.client = httpx.AsyncClient(transport=transport, timeout=timeout)
        self.one_at_a_time = asyncio.Lock()
        self.silent: asyncio.Future[float] = self.loop.create_future()
        self.life = close_at_the_end(self.client.aclose)
        self.watch: asyncio.Task[None] | None = None

    def give_up(self, since: float) -> None:
        self.silent.set_result(since)
        self.silent = self.loop.create_future()


class ServerError(Exception):
    """The server cannot be reached, or answered that it cannot go on.

    Attributes:
        since: When that began, by the monotonic clock.
    """

    def __init__(self, what: str, since: float | None = None) -> None:
        super().__init__(what)
        self.since = time.monotonic() if since is None else since


class Failure(ServerError):
    """The server could not answer a request, which may be the request's fault."""


def read_json(response: httpx.Response) -> Any:
    """Raises:
    EngineError: When the server refuses what it was asked.
    ServerError: When it cannot go on.
    """
    path = response.request.url.path
    if response.status_code >= 500:
        raise ServerError(f"{path}: {response.status_code} {response.text[:500]}")
    if response.status_code >= 400:
        hint = ""
        if response.status_code == 404:
            hint = "; start it with what vagentrl.engines.vllm.process.server_command gives"
        raise EngineError(f"the vLLM server refused {path}: {response.text[:500]}{hint}")
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.json() if response.content and is_json else None
