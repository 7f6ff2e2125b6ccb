import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import toy
from tests.viewer.stored import store
from vagentrl.errors import ConfigError
from vagentrl.viewer.reading import FOLDER, read_run
from vagentrl.viewer.records import image_name
from vagentrl.viewer.server import ViewerServer
from vagentrl.viewer.site import Site


@contextmanager
def serving(run: Path) -> Iterator[ViewerServer]:
    with ViewerServer(lambda: Site(read_run(run)), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: ViewerServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
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
