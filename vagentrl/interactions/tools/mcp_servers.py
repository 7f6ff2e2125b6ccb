"""MCP servers as a source of tools, through the official ``mcp`` package (extra ``mcp``)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from vagentrl.errors import ConfigError, seen
from vagentrl.event_loops import run_to_the_end
from vagentrl.interactions.settings import read_settings
from vagentrl.interactions.tools.base import Tool, ToolError
from vagentrl.interactions.tools.functions import without_titles

_LAUNCHER = Path(__file__).with_name("mcp_launcher.py")
_START_S = 60.0
"""Seconds in which a server must have started and listed its tools."""
_MOST_PAGES = 100
_MOST_SILENT = 3
"""Calls in a row that time out before the session is opened anew."""
_MOST_PIXELS = 2**24


@dataclass(frozen=True)
class McpSettings:
    """Where an MCP server is: a command, or a URL.

    Args:
        command: A program that speaks MCP over its standard input and output.
        args: Its arguments.
        env: Variables of its environment, besides HOME, PATH and the like.
        url: Address of a server that speaks MCP over streamable HTTP.
        headers: HTTP headers of every request, such as Authorization.
        prefix: Put before the names of its tools.
        log: File to which the standard error of a command is appended; None discards it.
    """

    command: str | None = None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    log: str | None = None

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ConfigError(
                f"an MCP server has command {seen(self.command)} and url {seen(self.url)}; give one"
            )
        if self.command is not None and shutil.which(self.command) is None:
            raise ConfigError(f"the command of an MCP server, {self.command!r}, is not found")


class McpTool(Tool):
    """A tool of an MCP server; the server checks the arguments."""

    def __init__(self, server: McpServer, listed: Any) -> None:
        self._server = server
        self._listed_name = listed.name
        self.name = server.settings.prefix + listed.name
        self.description = listed.description or ""
        self.parameters = without_titles(listed.input_schema)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Ask the server."""
        return await self._server.call(self._listed_name, arguments)


class _Session:
    """A connection that one task opens and closes, and that other tasks use."""

    def __init__(self, settings: McpSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self.client: asyncio.Future[Any] = self.loop.create_future()
        self.task = self.loop.create_task(self._hold(settings))
        self.client.add_done_callback(_retrieve)

    async def _hold(self, settings: McpSettings) -> None:
        try:
            async with _connected(settings) as client:
                self.client.set_result(client)
                await self._closing.wait()
        except Exception as error:  # boundary: a server may fail in any way
            if not self.client.done():
                self.client.set_exception(ToolError(_told(error)))
        finally:
            self.client.cancel()

    def close(self) -> None:
        self._closing.set()
        if not self.client.done():  # it is still being opened
            self.task.cancel()


class McpServer:
    """A server, opened at the first call in an event loop and shared by all conversations.

    A server that has ended is started anew at the next call. The session ends with its event loop,
    and the process of the server with the trainer, also when that is killed.

    Args:
        settings: Where it is.

    Raises:
        ConfigError: It does not start or does not list its tools, or ``mcp`` is not installed.
    """

    def __init__(self, settings: McpSettings) -> None:
        if find_spec("mcp") is None:
            raise ConfigError("mcp is not installed; run `pip install 'vagentrl[mcp]'`")
        self.settings = settings
        self._session: _Session | None = None
        self._silent = 0
        try:
            self.tools = [McpTool(self, listed) for listed in run_to_the_end(self._list)]
        except (Exception, ExceptionGroup) as error:  # boundary: a server may fail in any way
            place = settings.url or settings.command
            raise ConfigError(
                f"the MCP server {place} did not list its tools within {_START_S:g} s "
                f"({_told(error)}); try it by hand"
            ) from error

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool of the server.

        Raises:
            ToolError: The server refuses the call, or has ended.
        """
        from mcp import MCPError  # pyright: ignore[reportMissingImports]
        from mcp_types import CONNECTION_CLOSED  # pyright: ignore[reportMissingImports]

        session = self._opened()
        try:
            client = await asyncio.shield(session.client)
            result = await client.call_tool(name, dict(arguments))
        except asyncio.CancelledError:
            self._silent += 1
            if self._silent >= _MOST_SILENT:
                self._abandon(session)
            raise
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._abandon(session)
                raise ToolError("the tool's server has ended; call again") from None
            raise ToolError(_told(error)) from None
        except Exception as error:  # boundary: a server may fail in any way
            self._abandon(session)
            raise ToolError(f"the tool's server does not answer: {_told(error)}") from error
        self._silent = 0
        return _result(result)

    async def close(self) -> None:
        """Close the session, if there is one in this event loop, and stop the server's process."""
        session, self._session = self._session, None
        if session is not None and session.loop is asyncio.get_running_loop():
            session.close()
            await asyncio.wait([session.task])

    def _opened(self) -> _Session:
        session = self._session
        here = asyncio.get_running_loop()
        if session is None or session.loop is not here or session.task.done():
            session = self._session = _Session(self.settings)
        return session

    def _abandon(self, session: _Session) -> None:
        session.close()
        self._silent = 0
        if self._session is session:
            self._session = None

    async def _list(self) -> list[Any]:
        tools: list[Any] = []
        async with asyncio.timeout(_START_S), _connected(self.settings) as client:
            page = await client.list_tools()
            for _ in range(_MOST_PAGES):
                tools += page.tools
                if not page.next_cursor:
                    break
                page = await client.list_tools(cursor=page.next_cursor)
        return tools


def mcp_server(config: Mapping[str, Any]) -> McpServer:
    """The server that all interactions of a process with this config share."""
    read_settings(config, McpSettings, "an MCP server")
    return _shared_server(json.dumps(dict(config), sort_keys=True))


@cache
def _shared_server(config: str) -> McpServer:
    return McpServer(read_settings(json.loads(config), McpSettings, "an MCP server"))


@asynccontextmanager
async def _connected(settings: McpSettings) -> AsyncGenerator[Any]:
    """A client of the server, ready for calls."""
    import httpx2  # pyright: ignore[reportMissingImports]
    from mcp import (  # pyright: ignore[reportMissingImports]
        Client,
        StdioServerParameters,
        stdio_client,
    )
    from mcp.client.streamable_http import (  # pyright: ignore[reportMissingImports]
        streamable_http_client,
    )

    if settings.command is not None:
        command, args = settings.command, settings.args
        if sys.platform == "linux":
            args = ["-sP", str(_LAUNCHER), str(os.getpid()), command, *args]
            command = sys.executable
        server = StdioServerParameters(command=command, args=args, env=settings.env)
        with open(settings.log or os.devnull, "a") as log:
            async with Client(stdio_client(server, errlog=log)) as client:
                yield client
        return
    assert settings.url is not None
    timeout = httpx2.Timeout(30.0, read=300.0)
    async with (
        httpx2.AsyncClient(headers=settings.headers, timeout=timeout) as http_client,
        Client(streamable_http_client(settings.url, http_client=http_client)) as client,
    ):
        yield client


def _result(result: Any) -> Any:
    """The result of a call as a text, an image or a list of these."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    if result.is_error:
        raise ToolError("\n".join(part for part in parts if isinstance(part, str)) or "it failed")
    if all(isinstance(part, str) for part in parts):
        return "\n".join(parts)
    return parts


def _part(block: Any) -> Any:
    match block.type:
        case "text":
            return block.text
        case "image":
            return _picture(block.data)
        case "resource":
            text = block.resource.model_dump().get("text")
            return text if isinstance(text, str) else f"[{block.resource.uri} is not text]"
        case "resource_link":
            return str(block.uri)
        case kind:
            return f"[{kind} left out]"


def _picture(data: str) -> Any:
    try:
        picture = Image.open(io.BytesIO(base64.b64decode(data)))
        if picture.width * picture.height > _MOST_PIXELS:
            return f"[an image of {picture.width} × {picture.height} pixels left out]"
        picture.load()
    except (binascii.Error, OSError, ValueError, Image.DecompressionBombError):
        return "[an image that cannot be read]"
    return picture


def _told(error: BaseException) -> str:
    """The innermost error of a group, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the exception as seen, so that asyncio does not report one that nobody waited for."""
    if not future.cancelled():
        future.exception()
