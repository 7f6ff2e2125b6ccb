"""Serves the viewer's page on this machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from vagentrl.errors import ConfigError
from vagentrl.viewer.site import PAGE, Site, resources

HOST = "127.0.0.1"
_LOCAL = ("127.0.0.1", "localhost")
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "png": "image/png",
}


class ViewerServer(ThreadingHTTPServer):
    """Serves a run's page; opening the page again shows what the run has stored meanwhile.

    A path is only looked up among those of the site, and never joined to a folder's.

    Args:
        read: Reads the run; called whenever the page is opened.
        port: Port; 0 takes any that is free.
        host: Address to listen on.

    Raises:
        ConfigError: When the port is taken, or the address is not this machine's.
    """

    daemon_threads = True

    def __init__(self, read: Callable[[], Site], port: int, host: str = HOST) -> None:
        self._read = read
        self._reading = threading.Lock()
        self.resources = resources(read())
        self.local_only = host in _LOCAL
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"nothing can be served on {host}, port {port}: {error}; give another --port, or "
                "0 for any that is free"
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent where the browser has gone away in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Where to look."""
        return f"http://{self.server_address[0]}:{self.server_port}/"

    def read_again(self) -> None:
        """Look what the run has stored meanwhile."""
        with self._reading, suppress(ConfigError):  # the folder may be gone
            self.resources = resources(self._read())


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server_version = "vagentrl"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: a page asks for many files."""

    def _answer(self, *, with_body: bool) -> None:
        server = cast(ViewerServer, self.server)
        # A page of another site can make a browser ask this server under that site's name.
        asked = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if server.local_only and asked not in _LOCAL:
            return self._send(HTTPStatus.FORBIDDEN, "html", b"ask for 127.0.0.1\n", with_body)
        path = unquote(urlsplit(self.path).path).removeprefix("/") or PAGE
        if path == PAGE:
            server.read_again()
        content = server.resources.get(path)
        try:
            if content is None:
                raise FileNotFoundError
            body = content()
        except FileNotFoundError:  # the run may have dropped it meanwhile
            return self._send(HTTPStatus.NOT_FOUND, "html", b"not found\n", with_body)
        self._send(HTTPStatus.OK, path.rpartition(".")[2], body, with_body)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", _TYPES[kind])
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        if with_body:
            self.wfile.write(body)
