"""What is started ends with whoever started it, however that happens."""

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engines.test_vllm_server import running_in_group
from vagentrl.engines.vllm.base import VLLMBase
from vagentrl.engines.vllm.process import ServerProcess
from vagentrl.errors import EngineDead

# A server with a worker that does not end when it is asked to.
STUBBORN = """
import os, signal, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpgrp(), flush=True)
time.sleep(600)
"""
TRAINER = """
import sys, time
from vagentrl.engines.vllm import leash
from vagentrl.engines.vllm.process import ServerProcess

server = ServerProcess([sys.executable, "-c", sys.argv[1]], {})
server.keep_running()
print(server.log, flush=True)
time.sleep(600)
"""


def group_in(log: Path) -> int:
    """Of the processes that say so in their log."""
    given_up = time.monotonic() + 30
    while len(lines := log.read_text().split()) < 2:
        assert time.monotonic() < given_up
        time.sleep(0.05)
    return int(lines[-1])


def ended(group: int) -> bool:
    given_up = time.monotonic() + 30
    while running_in_group(group):
        if time.monotonic() > given_up:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_trainer_that_is_killed_leaves_no_server_behind(number: signal.Signals):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, STUBBORN], stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    with trainer.stdout as out:
        group = group_in(Path(out.readline().strip()))
    assert len(running_in_group(group)) == 2
    trainer.send_signal(number)
    trainer.wait()
    assert ended(group)


def test_a_server_that_has_ended_is_started_again_if_it_had_ever_answered():
    server = ServerProcess([sys.executable, "-c", STUBBORN], {})
    server.keep_running()
    groups = []
    try:
        for _ in range(2):
            groups.append(group_in(server.log))
            server.keep_running()  # it is there
            assert server.process is not None
            os.killpg(groups[-1], signal.SIGKILL)
            server.process.wait()
            server.answered = True
            server.log.write_text("")
            server.keep_running()
        assert groups[0] != groups[1]
    finally:
        server.end()


def test_a_server_that_ends_before_it_answers_is_not_tried_again():
    server = ServerProcess([sys.executable, "-c", "raise SystemExit('no such model')"], {})
    server.keep_running()
    assert server.process is not None
    server.process.wait()
    with pytest.raises(EngineDead, match=r"exit code 1 before it answered;(?s:.*)no such model"):
        server.keep_running()


class Named(VLLMBase):
    """Hands files over, and that is all."""

    def update_weights(self, policy, version): ...

    async def generate(self, request): ...  # pyright: ignore


def test_what_a_killed_trainer_handed_over_is_removed(tmp_path: Path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    node = platform.node()
    stale = tmp_path / f"vagentrl-{node}-{ended.pid}-abc"
    kept = [
        tmp_path / f"vagentrl-{node}-{os.getpid()}-abc",
        tmp_path / f"vagentrl-{node}x-{ended.pid}-abc",  # another machine's
        tmp_path / f"vagentrl-vllm-{ended.pid}.log",
    ]
    for path in (stale, *kept):
        path.mkdir()
    engine = Named(None, str(tmp_path))
    ours = Path(engine._file("weights")).parent
    assert sorted(tmp_path.iterdir()) == sorted([ours, *kept])
