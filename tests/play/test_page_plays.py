"""The served page in a headless Chromium plays; without one these tests are skipped."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.headless_chromium import Browser, chromium, find_chromium
from tests.play.runs import make_run
from vagentrl.cli.live import _games
from vagentrl.viewer.export import export
from vagentrl.viewer.reading import read_run
from vagentrl.viewer.server import ViewerServer
from vagentrl.viewer.site import Site

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs Chromium")

MESSAGE = "document.querySelector('.game .message')?.textContent"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def page(run: Path, browser: Browser) -> Iterator[None]:
    games, live = _games(run, "127.0.0.1", None, None, "thread", 1.0)
    assert games is not None, live
    with ViewerServer(lambda: Site(read_run(run), live), 0, play=games) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            browser.open(server.address)
            yield
        finally:
            server.shutdown()
            thread.join()
            games.close()


def click(browser: Browser, selector: str) -> None:
    browser.wait_for(f"document.querySelector('{selector}:enabled')")
    browser.run(f"document.querySelector('{selector}').click()")


def send(browser: Browser, text: str) -> None:
    browser.wait_for("document.querySelector('#reply:enabled')")
    browser.run("document.querySelector('#reply').focus()")
    browser.call("Input.insertText", text=text)
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r")


def test_another_reply_is_played_and_stands_beside_the_episode(browser: Browser, tmp_path: Path):
    run = make_run(tmp_path, "tests.play.games.Walk", {0: ["Right", "Left"], 2: ["Left"]})
    with page(run, browser):
        browser.run("controls.seed.value = '0'; applyFilters()")
        browser.press("ArrowRight")  # the second turn
        browser.press("4")
        browser.wait_for("document.querySelector('#branch')")
        assert browser.run("document.querySelector('.game select').value") == "1"
        click(browser, "#branch")
        click(browser, "#advice")
        browser.wait_for(f"{MESSAGE} === 'The oracle advises Right (2 actions to the end).'")
        assert browser.run("document.querySelector('#reply').value") == "Right"
        assert "agrees" in browser.run("document.querySelector('.game .good').textContent")
        click(browser, "#send")
        browser.wait_for("document.querySelectorAll('.side .head').length === 2")
        send(browser, "right")
        browser.wait_for("document.querySelector('.game .acts .good')")
        ended = browser.run("document.querySelector('.game .acts .good').textContent")
        assert ended == "terminated: success, return +3 after 3 turns"
        browser.wait_for("document.querySelectorAll('.side .shared').length === 1")
        heads = "[...document.querySelectorAll('.side .head')].map(h => h.firstChild.textContent)"
        assert browser.run(heads) == ["original", "person, from turn 2"]
        assert browser.run("controls.seed.value") == "0"  # the filter is still set
        assert browser.run("document.querySelector('#count').textContent").startswith("2 of 3")
        assert browser.run("state.row") == 0


def test_a_new_game_is_played_and_hostile_text_is_only_shown(browser: Browser, tmp_path: Path):
    run = make_run(tmp_path, "tests.play.games.Breaks", {})
    with page(run, browser):
        click(browser, "#begin")  # an empty folder opens with a new game
        send(browser, "on")
        browser.wait_for("document.querySelectorAll('.past').length === 1")
        seen = browser.run("document.querySelector('.game .seen .text').textContent")
        assert "<b>x</b>" in seen and "U+202E" in seen and "ESC" in seen
        click(browser, "#advice")
        browser.wait_for(f"{MESSAGE}?.startsWith('EnvError: KeyError')")
        send(browser, "hang")
        browser.wait_for("document.querySelector('.acts .error')")
        failed = browser.run("document.querySelector('.acts .error').textContent")
        assert "did not answer answer within 1 s" in failed
        click(browser, "#begin")  # the next one
        send(browser, "on")
        browser.wait_for("document.querySelectorAll('.row').length === 2")


def test_a_replay_that_disagrees_is_said_to(browser: Browser, tmp_path: Path):
    run = make_run(tmp_path, "tests.play.games.Drifts", {0: ["a", "b"]})
    with page(run, browser):
        browser.press("4")
        click(browser, "#branch")
        browser.wait_for("document.querySelector('#reply:enabled')")
        assert browser.run("document.querySelector('.game .good') !== null")
        click(browser, ".acts > .tools:last-child button")  # leave, and take a later turn
        browser.wait_for("document.querySelector('#branch')")
        browser.run("document.querySelector('.game select').value = '1'")
        click(browser, "#branch")
        browser.wait_for("document.querySelector('.disagrees')")
        told = browser.run("document.querySelector('.disagrees').textContent")
        assert "does NOT agree" in told and "from turn 2 on: the observation" in told


def test_a_page_from_the_disk_says_how_to_play(browser: Browser, tmp_path: Path):
    run = make_run(tmp_path / "run", "tests.play.games.Walk", {0: ["Right"]})
    browser.events.clear()
    browser.open(export(Site(read_run(run)), tmp_path / "one.html").as_uri())
    browser.press("4")
    browser.wait_for("document.querySelector('.game p')")
    assert "vagentrl view FOLDER" in browser.run("document.querySelector('.game p').textContent")
    assert browser.run("document.querySelectorAll('#tabs button')[4].disabled")
    blocked = browser.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'blocked')")
    assert blocked == "blocked"
    assert any("connect-src" in text or "default-src" in text for text in browser.complaints())
