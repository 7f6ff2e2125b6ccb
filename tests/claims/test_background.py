import asyncio
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from vagentrl.claims.background import BackgroundLoop


def test_all_coroutines_run_in_one_loop_in_another_thread():
    async def where() -> tuple[int, str]:
        return id(asyncio.get_running_loop()), threading.current_thread().name

    background = BackgroundLoop()
    places = [background.submit(where()).result() for _ in range(3)]
    background.close()
    assert len(set(places)) == 1
    assert places[0][1] == "judge"


def test_closing_cancels_unfinished_coroutines_and_ends_the_thread():
    background = BackgroundLoop()
    endless = background.submit(asyncio.sleep(3600))
    background.close()
    with pytest.raises(CancelledError):
        endless.result(0)
    assert not [thread for thread in threading.enumerate() if thread.name == "judge"]


def test_the_thread_switch_interval_is_shorter_while_the_loop_is_open():
    before = sys.getswitchinterval()
    background = BackgroundLoop()
    during = sys.getswitchinterval()
    background.close()
    assert during < before == sys.getswitchinterval()
