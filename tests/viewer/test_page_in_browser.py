"""The page in a headless Chromium; without one these tests are skipped."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.headless_chromium import Browser, chromium, find_chromium
from tests import toy
from tests.viewer.stored import (
    HOSTILE,
    full_scores,
    full_trajectory,
    hostile_trajectory,
    name_tokens,
    store,
)
from vagentrl.viewer.export import export
from vagentrl.viewer.folder import TrajectoryFolder
from vagentrl.viewer.reading import FOLDER, read_run
from vagentrl.viewer.records import RowWriter
from vagentrl.viewer.site import Site

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of one run's exports, to a folder and to a file."""
    run = tmp_path_factory.mktemp("run")
    store(
        run,
        [toy.play([toy.WAIT, toy.GO], seed=4, group_id=n // 2, images=True) for n in range(600)],
    )
    store(run, [hostile_trajectory()], iteration=1)
    full, writer = full_trajectory(), RowWriter(name_tokens)
    scores = full_scores(len(full.turns[0].reply_ids))
    writer.add(full, split="train", iteration=2, member=0, scores=scores)
    folder = TrajectoryFolder(run / FOLDER, 1e9)
    folder.write("train", 2, writer.rows, writer.images)
    played = toy.play([toy.GO], seed=8)
    [turn] = played.turns
    long = replace(turn, reply=replace(turn.reply, thought="x" * 1_000_000))
    store(run, [replace(played, turns=(long,))], iteration=3)
    (run / FOLDER / "train-000009.parquet").write_bytes(b"torn")
    site = Site(read_run(run))
    return {
        "folder": export(site, run / "page").as_uri(),
        "file": export(site, run / "one.html").as_uri(),
    }


def count(browser: Browser) -> str:
    return browser.run("document.getElementById('count').textContent")


def show(browser: Browser, row: int, view: str = "turns") -> None:
    browser.run(f"state.view = '{view}'; select({row})")
    browser.wait_for(f"document.getElementById('view').dataset.shown === '{row}/0/{view}'")


def text(browser: Browser, selector: str) -> str:
    return browser.run(f"document.querySelector('{selector}').textContent")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_page_works_from_the_disk_without_a_complaint(
    kind: str, browser: Browser, pages: dict[str, str]
):
    browser.events.clear()
    browser.open(pages[kind])
    assert count(browser) == "603 of 603 trajectories"
    assert "train-000009.parquet is left out: torn" in text(browser, "#problems")
    assert browser.run("document.querySelectorAll('.row').length") < 100  # of 603
    browser.wait_for("document.querySelector('.seen img')?.naturalWidth > 0")
    assert "<answer>wait</answer>" not in text(browser, ".seen")
    for key, turn in (("ArrowRight", 1), ("End", 2), ("ArrowLeft", 1), ("Home", 0)):
        browser.press(key)
        browser.wait_for(f"document.getElementById('view').dataset.shown === '0/{turn}/turns'")
    browser.press("2")
    browser.wait_for("document.querySelectorAll('.side .head').length === 2")
    browser.press("3")
    browser.wait_for("document.querySelectorAll('.side .head').length === 24")
    browser.press("j")
    browser.wait_for("document.getElementById('view').dataset.shown === '1/0/seed'")
    assert browser.complaints() == []


def test_filters_and_sorting_choose_the_rows(browser: Browser, pages: dict[str, str]):
    browser.open(pages["folder"])
    change = "document.getElementById('filters').dispatchEvent(new Event('input'))"
    browser.run(f"controls.iteration[0].value = '1'; {change}")
    assert count(browser) == "3 of 603 trajectories"
    browser.run(f"controls.success.value = 'false'; {change}")
    assert count(browser) == "1 of 603 trajectories"  # the hostile one
    browser.run(f"document.getElementById('filters').reset(); controls.group.value = '7'; {change}")
    browser.wait_for("document.getElementById('count').textContent.startsWith('2 of')")
    browser.run(f"controls.group.value = ''; controls.seed.value = '8'; {change}")
    assert count(browser) == "1 of 603 trajectories"
    browser.run(f"controls.seed.value = ''; {change}")
    browser.run("document.querySelectorAll('#columns button')[0].click()")
    browser.run("document.querySelectorAll('#columns button')[0].click()")
    assert browser.run("document.querySelector('.row').firstChild.textContent") == "3"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_nothing_that_was_written_is_executed_or_rendered(
    kind: str, browser: Browser, pages: dict[str, str]
):
    browser.events.clear()
    browser.open(pages[kind])
    for view in ("turns", "group", "seed"):
        show(browser, 600, view)
        assert browser.run("window.broken") is None
        found = browser.run("document.querySelectorAll('main svg[onload], main script').length")
        assert found == 0
        assert browser.run("document.querySelectorAll('img[src=x]').length") == 0
    show(browser, 600)
    assert browser.run("({}).valid") is None
    shown = text(browser, ".seen .text")
    visible = HOSTILE
    for hidden, name in (
        ("\u2028", "U+2028"),
        ("\u202e", "U+202E"),
        ("\u202c", "U+202C"),
        ("\x00", "NUL"),
        ("\x1b", "ESC"),
    ):
        visible = visible.replace(hidden, name)
    assert shown == visible
    marks = browser.run("[...document.querySelectorAll('.seen .mark')].map(m => m.textContent)")
    assert marks == ["U+2028", "U+202E", "U+202C", "NUL", "ESC"]
    assert "⟨U+202E⟩" in text(browser, "#facts strong")
    assert browser.complaints() == []


def test_the_policy_stops_a_script_that_gets_into_the_page(browser: Browser, pages: dict[str, str]):
    browser.open(pages["folder"])
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.injected = 1'}))"
    )
    assert browser.run("window.injected") is None
    with pytest.raises(RuntimeError, match=r"Content Security Policy|Failed to fetch"):
        browser.run("fetch('https://example.org').then(() => 1)")
    browser.events.clear()


def test_tokens_show_their_quantities(browser: Browser, pages: dict[str, str]):
    browser.open(pages["folder"])
    show(browser, 601)
    known = browser.run("[...document.querySelectorAll('.tools option')].map(o => o.value)")
    assert known == [
        "mask", "advantage", "logprob", "actor", "reference", "kl", "gap", "entropy", "value"
    ]  # fmt: skip
    browser.run("setQuantity('kl')")
    browser.wait_for("document.querySelector('.tools select').value === 'kl'")
    browser.run("document.querySelectorAll('.token')[1].dispatchEvent(new Event('mouseenter'))")
    facts = browser.run(
        "Object.fromEntries([...document.querySelectorAll('#tip tr')].map("
        "row => [row.children[0].textContent, row.children[1].textContent]))"
    )
    # the second token: actor -1.25, reference -2.25, sampled -0.51, value 1/4, advantage 1/4 - 1
    assert facts["KL: actor − reference"] == "1"
    assert facts["engine gap: actor − sampled"] == "−0.74"
    assert (facts["value"], facts["advantage"], facts["entropy (nats)"]) == (
        "0.25",
        "−0.75",
        "0.25",
    )
    assert browser.run("document.querySelector('#tip .now th').textContent").startswith("KL")
    for shown in ("half right", "Say go.", "too short", "score 0.5"):
        assert shown in text(browser, "#view")


def test_a_megabyte_of_text_is_cut_until_it_is_asked_for(browser: Browser, pages: dict[str, str]):
    browser.open(pages["folder"])
    show(browser, 602)
    assert len(text(browser, "#view")) < 20_000
    assert "show all 1,000,000 characters" in text(browser, "#view")


def test_dark_and_light_are_different(browser: Browser, pages: dict[str, str], tmp_path: Path):
    background = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for dark in (False, True):
        browser.open(pages["folder"], dark=dark)
        seen.append(browser.run(background))
    browser.press("t")
    assert [*seen, browser.run(background)] == [seen[0], seen[1], seen[0]]
    assert seen[0] != seen[1]
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(base64.b64decode("iVBORw=="))
