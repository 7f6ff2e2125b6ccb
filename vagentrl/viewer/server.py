"""Serves the viewer's page on this machine."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from vagentrl.errors import ConfigError, VagentError, where
from vagentrl.viewer.site import PAGE, Site, resources, to_json

HOST = "127.0.0.1"
AGAIN = "again"
"""The query of a page that wants to see what was stored meanwhile."""
MOST_BYTES = 2**20
"""Length of a request that the page may send."""
LOCAL = ("127.0.0.1", "localhost")
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
}


Play = Callable[[Site, str, Mapping[str, Any]], Mapping[str, Any]]


class ViewerServer(ThreadingHTTPServer):
    """Serves a run's page; opening the page again shows what the run has stored meanwhile.

    A path is only looked up among those of the site, and never joined to a folder's.

    Args:
        read: Reads the run; called whenever the page is opened.
        port: Port; 0 takes any that is free.
        host: Address to listen on.
        play: Answers what the page asks when it plays: called with what is stored, an action and
            its fields, in a thread of its own. None refuses. It runs code of environments, so that
            it is asked only where `host` is this machine, by pages of this server.

    Raises:
        ConfigError: When the port is taken, or the address is not this machine's.
    """

    daemon_threads = True

    def __init__(
        self, read: Callable[[], Site], port: int, host: str = HOST, play: Play | None = None
    ) -> None:
        self._read = read
        self._reading = threading.Lock()
        self._set(read())
        self.local_only = host in LOCAL
        self.play = play if self.local_only else None
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
            self._set(self._read())

    def _set(self, site: Site) -> None:
        self.site, self.resources = site, resources(site)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD, and POST from its own page."""

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
        if server.local_only and not self._asked_for_here():
            return self._send(HTTPStatus.FORBIDDEN, "html", b"ask for 127.0.0.1\n", with_body)
        path = unquote(urlsplit(self.path).path).removeprefix("/") or PAGE
        if path == PAGE or urlsplit(self.path).query == AGAIN:
            server.read_again()
        content = server.resources.get(path)
        try:
            if content is None:
                raise FileNotFoundError
            body = content()
        except FileNotFoundError:  # the run may have dropped it meanwhile
            return self._send(HTTPStatus.NOT_FOUND, "html", b"not found\n", with_body)
        self._send(HTTPStatus.OK, path.rpartition(".")[2], body, with_body)

    def do_POST(self) -> None:
        server = cast(ViewerServer, self.server)
        self.close_connection = True
        length = self.headers.get("Content-Length", "")
        if server.play is None:
            return self._refuse_unread(HTTPStatus.NOT_IMPLEMENTED, "nothing can be played here")
        if not self._asked_for_here() or not self._from_own_page():
            return self._refuse_unread(HTTPStatus.FORBIDDEN, "only this server's own page may ask")
        if not (length.isascii() and length.isdecimal() and int(length[:20]) <= MOST_BYTES):
            return self._refuse_unread(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too long"
            )
        action = urlsplit(self.path).path.removeprefix("/play/")
        try:
            asked = json.loads(self.rfile.read(int(length)))
            if not isinstance(asked, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError):
            return self._refuse(HTTPStatus.BAD_REQUEST, "the request is no JSON object")
        try:
            told = server.play(server.site, action, asked)
        except VagentError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, f"{type(error).__name__}: {error}")
        except Exception as error:  # models and environments are anybody's code
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, where(error))
        self._send(HTTPStatus.OK, "json", to_json(told).encode("ascii"), True)

    def _asked_for_here(self) -> bool:
        """Whether the request names this machine: a page of another site can make a browser ask
        this server under that site's name."""
        return _host(f"//{self.headers.get('Host', '')}")[0] in LOCAL

    def _from_own_page(self) -> bool:
        """Whether a script of this server's page sent the request: others can send forms, but
        neither another origin's name nor JSON."""
        server = cast(ViewerServer, self.server)
        origin = self.headers.get("Origin", "")
        return (
            origin.startswith("http://")
            and _host(origin)[0] in LOCAL
            and _host(origin)[1] == server.server_port
            and self.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
            and self.headers.get("Content-Type", "").partition(";")[0] == _TYPES["json"]
        )

    def _refuse_unread(self, status: HTTPStatus, why: str) -> None:
        """Refuse a request whose body is not read.

        What comes of it in the next moments is dropped: closing a connection with unread bytes
        resets it, and the answer may then be lost.
        """
        self._refuse(status, why)
        deadline = time.monotonic() + 1
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1)
            while time.monotonic() < deadline and self.connection.recv(2**16):
                pass

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(status, "json", to_json({"error": why}).encode("ascii"), True)

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


def _host(url: str) -> tuple[str | None, int | None]:
    """Host and port of a URL; None for what cannot be read."""
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port
    except ValueError:
        return None, None
