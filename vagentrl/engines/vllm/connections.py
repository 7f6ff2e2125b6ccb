"""HTTP connections to a vLLM server, and their errors."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from functools import cache
from typing import Any

import httpx

from vagentrl.errors import EngineError
from vagentrl.event_loops import close_at_the_end

CONNECT_S = 10.0
"""Seconds to wait for a connection."""
KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
]
"""TCP keep-alive probes, which detect that the server's machine is gone."""


@cache
def tls() -> ssl.SSLContext:
    """Return the settings of all TLS connections; httpx would read the certificates each time."""
    return httpx.create_ssl_context()


class Connections:
    """The connections of one event loop, and the state that its requests share.

    Attributes:
        loop: The event loop.
        client: The HTTP client.
        recovery_lock: Held while a task restores the server and its weights.
        silent: Future that is resolved when the server has been silent for too long; its result
            is the monotonic time of the last sign of life.
        closer: Generator that closes the client when the event loop shuts down.
        watch: The task that calls `give_up`.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        transport = httpx.AsyncHTTPTransport(tls(), limits=limits, socket_options=KEEP_ALIVE)
        timeout = httpx.Timeout(None, connect=CONNECT_S)  # long replies must not time out
        self.client = httpx.AsyncClient(transport=transport, timeout=timeout)
        self.recovery_lock = asyncio.Lock()
        self.silent: asyncio.Future[float] = self.loop.create_future()
        self.closer = close_at_the_end(self.client.aclose)
        self.watch: asyncio.Task[None] | None = None

    def give_up(self, since: float) -> None:
        """Fail all pending requests: the server has been silent since this monotonic time."""
        self.silent.set_result(since)
        self.silent = self.loop.create_future()


class ServerError(Exception):
    """The server cannot be reached, reported an internal error, or has lost its weights.

    Attributes:
        since: Monotonic time at which the problem began.
    """

    def __init__(self, what: str, since: float | None = None) -> None:
        super().__init__(what)
        self.since = time.monotonic() if since is None else since


class ServerSilent(ServerError):
    """The server has not answered anything for longer than its client's `patience_s`."""


class RequestFailed(ServerError):
    """The server failed at one request, which may be the request's fault."""


def read_json(response: httpx.Response) -> Any:
    """Return a response's JSON; None for an empty body or another content type.

    Raises:
        EngineError: When the server refuses the request (4xx).
        ServerError: When the server fails (5xx), or answers something that is no JSON.
    """
    path = response.request.url.path
    if response.status_code >= 500:
        raise ServerError(f"{path}: {response.status_code} {response.text[:500]}")
    if response.status_code >= 400:
        hint = ""
        if response.status_code == 404:
            hint = "; start it with the command of vagentrl.engines.vllm.process.server_command"
        raise EngineError(f"the vLLM server refused {path}: {response.text[:500]}{hint}")
    is_json = response.headers.get("content-type", "").startswith("application/json")
    try:
        return response.json() if response.content and is_json else None
    except ValueError as error:
        raise ServerError(f"{path}: {response.text[:500]!r} is no JSON") from error
