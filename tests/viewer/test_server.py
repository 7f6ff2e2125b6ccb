import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import toy
from tests.viewer.stored import store
from vagentrl.errors import ConfigError, EnvError
from vagentrl.viewer.reading import FOLDER, read_run
from vagentrl.viewer.records import image_name
from vagentrl.viewer.server import HOST, MOST_BYTES, Play, ViewerServer
from vagentrl.viewer.site import Site


@contextmanager
def serving(run: Path, play: Play | None = None, host: str = HOST) -> Iterator[ViewerServer]:
    with ViewerServer(lambda: Site(read_run(run)), port=0, host=host, play=play) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: ViewerServer, path: str, method: str = "GET", body: bytes = b"", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, headers=named)
    response = connection.getresponse()
    try:
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    return store(tmp_path / "run", [toy.play([toy.GO], seed=4, images=True)])


def test_the_page_its_data_and_its_images_are_served_on_this_machine_only(run: Path):
    with serving(run) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert server.address == f"http://127.0.0.1:{server.server_port}/"
        status, page, headers = ask(server, "/")
        assert status == 200 and page.startswith(b"<!doctype html>")
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        status, data, headers = ask(server, "/data/train-000000-0.js")
        assert status == 200 and data.startswith(b'receiveData("train-000000-0", ')
        status, image, headers = ask(server, f"/images/{image_name(toy.picture(1))}")
        assert image.startswith(b"\x89PNG") and headers["Content-Type"] == "image/png"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/images/../../../secret.txt",
        "/images/%2e%2e/%2e%2e/%2e%2e/secret.txt",
        "/images//etc/passwd",
        "//etc/passwd",
        "/images/..%2f..%2f..%2fsecret.txt",
        "/images/%00",
        "/trajectories/train-000000.parquet",
        "/data/../data/nothing.js",
    ],
)
def test_nothing_beside_the_page_is_served(path: str, run: Path):
    with serving(run) as server:
        status, body, _ = ask(server, path)
    assert (status, body) == (404, b"not found\n")


def test_a_page_of_another_site_cannot_ask_under_its_own_name(run: Path):
    with serving(run) as server:
        assert ask(server, "/data/index.js", Host="evil.example:80")[0] == 403
        assert ask(server, "/data/index.js", Host="localhost:80")[0] == 200


def test_other_methods_are_refused(run: Path):
    with serving(run) as server:
        assert ask(server, "/", method="POST")[0] == 501
        assert ask(server, "/", method="HEAD")[1] == b""


def post(
    server: ViewerServer, path: str = "/play/echo", body: bytes = b"{}", **headers: Any
) -> tuple[int, dict]:
    """Ask as the page does, with other headers where they are given; None leaves one out."""
    own = {
        "Origin": f"http://127.0.0.1:{server.server_port}",
        "Content_Type": "application/json",
        "Sec_Fetch_Site": "same-origin",
    }
    sent = {name: value for name, value in (own | headers).items() if value is not None}
    status, answer, said = ask(server, path, "POST", body, **sent)
    assert said["Content-Type"] == "application/json"
    return status, json.loads(answer)


class Played:
    """What the server was asked to play."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []

    def __call__(self, site: Site, action: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append((action, asked))
        if action == "fail":
            raise EnvError("no <water>")
        if action == "break":
            raise ZeroDivisionError("foreign code")
        return {"said": "<b>\u202e", "number": float("nan"), "stored": site.trajectories}


def test_the_own_page_may_play(run: Path):
    with serving(run, played := Played()) as server:
        assert post(server, body=b'{"a": 1}') == (
            200, {"said": "<b>\u202e", "number": "NaN", "stored": 1}
        )  # fmt: skip
        assert (
            post(server, Origin=f"http://localhost:{server.server_port}", Host="localhost")[0]
            == 200
        )
        assert post(server, Sec_Fetch_Site=None)[0] == 200  # older browsers do not send it
    assert played.asked[0] == ("echo", {"a": 1})


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1.evil.example:{port}"},
        {"Origin": "http://evil.example@127.0.0.2:{port}"},
        {"Origin": "http://[::1"},
        {"Host": "evil.example"},
        {"Host": "[::1"},
        {"Content_Type": "text/plain"},  # what a form of another site can send
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Content_Type": None},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},  # another port of this machine
    ],
)
def test_nobody_else_may_play(headers: dict[str, str | None], run: Path):
    with serving(run, played := Played()) as server:
        filled: dict[str, Any] = {
            n: v and v.format(port=server.server_port) for n, v in headers.items()
        }
        assert post(server, **filled) == (403, {"error": "only this server's own page may ask"})
    assert played.asked == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 400), (b"{", 400), (b"", 400), (b"\xff", 400), (b"[" * 100_000, 400),
        (b" " * (MOST_BYTES + 1), 413),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(body: bytes, status: int, run: Path):
    with serving(run, played := Played()) as server:
        length = {"Content_Length": "0"} if not body else {}
        assert post(server, body=body, **length)[0] == status
        assert post(server, Content_Length="-1")[0] == 413
        assert post(server)[0] == 200
    assert len(played.asked) == 1


def test_what_fails_is_told_and_the_server_lives_on(run: Path):
    with serving(run, Played()) as server:
        assert post(server, "/play/fail") == (400, {"error": "EnvError: no <water>"})
        status, told = post(server, "/play/break")
        assert status == 500 and told["error"].startswith("ZeroDivisionError: foreign code")
        assert post(server)[0] == 200


def test_on_other_addresses_nothing_is_played(run: Path):
    with serving(run, Played(), host="0.0.0.0") as server:
        assert post(server) == (501, {"error": "nothing can be played here"})


def test_a_page_can_ask_for_what_was_stored_meanwhile(run: Path):
    with serving(run) as server:
        store(run, [toy.play([toy.GO], seed=4)], iteration=3)
        assert b"train-000003" not in ask(server, "/data/index.js")[1]
        assert b"train-000003" in ask(server, "/data/index.js?again")[1]


def test_opening_the_page_again_shows_what_was_stored_meanwhile(run: Path):
    with serving(run) as server:
        assert ask(server, "/data/train-000003-0.js")[0] == 404
        store(run, [toy.play([toy.GO], seed=4)], iteration=3)
        ask(server, "/")
        assert ask(server, "/data/train-000003-0.js")[0] == 200


def test_what_the_run_has_dropped_meanwhile_is_missing_and_nothing_breaks(run: Path):
    with serving(run) as server:
        for path in (run / FOLDER).rglob("*.*"):
            path.unlink()
        assert b'"problem":' in ask(server, "/data/train-000000-0.js")[1]
        assert ask(server, f"/images/{image_name(toy.picture(1))}")[0] == 404
        assert ask(server, "/")[0] == 200


def test_a_run_that_is_gone_leaves_the_page_of_before(run: Path):
    with serving(run) as server:
        run.rename(run.with_name("elsewhere"))
        assert ask(server, "/")[0] == 200


def test_a_port_that_is_taken_is_named(run: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}: .*give another --port"):
            ViewerServer(lambda: Site(read_run(run)), port)


@pytest.mark.parametrize(("error", "told"), [(BrokenPipeError(), False), (ValueError("x"), True)])
def test_a_browser_that_goes_away_is_no_news(
    error: Exception, told: bool, run: Path, capfd: pytest.CaptureFixture[str]
):
    with ViewerServer(lambda: Site(read_run(run)), port=0) as server:
        try:
            raise error
        except Exception:
            server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capfd.readouterr().err) == told
