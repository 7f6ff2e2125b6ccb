"""A small MCP server for the tests: over its standard streams, or over HTTP with a port given."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import Image, MCPServer
from PIL import Image as Pictures

server = MCPServer("tests")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two whole numbers."""
    return str(a + b)


@server.tool()
def process_id() -> str:
    """The id of the server's process."""
    return str(os.getpid())


@server.tool()
def picture() -> Image:
    """A red picture of 3 × 2 pixels."""
    path = f"{sys.argv[1]}/red.png"
    Pictures.new("RGB", (3, 2), (255, 0, 0)).save(path)
    return Image(path=path)


@server.tool()
def fail() -> str:
    """It always fails."""
    raise ValueError("there is nothing here")


@server.tool()
def die() -> str:
    """It ends the server."""
    os._exit(1)


@server.tool()
async def sleep(seconds: float) -> str:
    """It takes its time."""
    await anyio.sleep(seconds)
    return "awake"


@server.tool()
def huge() -> str:
    """A megabyte."""
    return "x" * 10**6


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[2] != "deaf":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
    once = Path(sys.argv[1], "once")
    while "deaf" in sys.argv and once.exists():  # from the second time it outlives its input
        time.sleep(1)
    once.touch()
