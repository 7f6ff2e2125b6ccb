import asyncio
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest

from vagentrl import event_loops
from vagentrl.event_loops import SharedLoop, quick_switches


def test_all_coroutines_run_in_one_loop_in_another_thread():
    async def where() -> tuple[int, str]:
        return id(asyncio.get_running_loop()), threading.current_thread().name

    background = SharedLoop("judge")
    places = [background.submit(where()).result() for _ in range(3)]
    background.close()
    assert len(set(places)) == 1
    assert places[0][1] == "judge"


def test_closing_cancels_unfinished_coroutines_and_ends_the_thread():
    background = SharedLoop("judge")
    endless = background.submit(asyncio.sleep(3600))
    background.close()
    with pytest.raises(CancelledError):
        endless.result(0)
    assert not [thread for thread in threading.enumerate() if thread.name == "judge"]


def test_a_loop_that_was_closed_starts_again():
    background = SharedLoop("judge", watched=True)
    for number in range(3):
        assert background.run(asyncio.sleep(0, number), timeout_s=30) == number
        background.close()
        background.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "judge"]


def test_closing_a_loop_that_code_blocks_leaves_its_thread_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(event_loops, "CLOSE_S", 0.05)
    free, blocked = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        free.wait(30)

    background = SharedLoop("judge")
    background.submit(block())
    blocked.wait(30)
    background.close()
    assert "code blocks the event loop 'judge'" in caplog.text
    free.set()
    while any(thread.name == "judge" for thread in threading.enumerate()):  # it ends by itself
        time.sleep(0.01)


def test_threads_take_turns_more_often_within_the_block():
    before = sys.getswitchinterval()
    with quick_switches():
        during = sys.getswitchinterval()
    assert during < before == sys.getswitchinterval()
