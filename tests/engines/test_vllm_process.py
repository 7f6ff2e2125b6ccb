"""Processes and files of the vLLM engines are cleaned up when the trainer is killed."""

import os
import platform
import signal
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from tests.engines.test_vllm_server import running_in_group
from vagentrl.engines.vllm.base import VLLMBase
from vagentrl.engines.vllm.process import ServerProcess
from vagentrl.errors import EngineDead

# A server with a worker that ignores SIGTERM.
STUBBORN = """
import os, signal, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpgrp(), flush=True)
time.sleep(600)
"""
TRAINER = """
import sys, time
from vagentrl.engines.vllm.process import ServerProcess

server = ServerProcess([sys.executable, "-c", sys.argv[1]], {})
server.keep_running()
print(server.log, flush=True)
time.sleep(600)
"""


def group_in(log: Path) -> int:
    """Return the process group that the server's two processes print to the log."""
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
def test_killing_the_trainer_ends_the_server_and_its_workers(number: signal.Signals):
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


def test_a_server_that_ended_after_it_had_answered_is_restarted():
    server = ServerProcess([sys.executable, "-c", STUBBORN], {})
    server.keep_running()
    groups = []
    try:
        for _ in range(2):
            groups.append(group_in(server.log))
            server.keep_running()  # does nothing: the server is running
            assert server.process is not None
            os.killpg(groups[-1], signal.SIGKILL)
            server.process.wait()
            server.answered = True
            server.log.write_text("")
            server.keep_running()
        assert groups[0] != groups[1]
    finally:
        server.end()


def test_a_server_that_ends_before_it_answers_is_not_restarted():
    server = ServerProcess([sys.executable, "-c", "raise SystemExit('no such model')"], {})
    server.keep_running()
    assert server.process is not None
    server.process.wait()
    with pytest.raises(EngineDead, match=r"exit code 1 before it answered;(?s:.*)no such model"):
        server.keep_running()


SHARING = """
import sys, time
from multiprocessing import shared_memory

segment = shared_memory.SharedMemory(create=True, size=4096)
print(segment.name, flush=True)
time.sleep(600)
"""


def name_of_segment(server: ServerProcess) -> str:
    given_up = time.monotonic() + 30
    while not (name := server.log.read_text().strip()):
        assert time.monotonic() < given_up
        time.sleep(0.05)
    return name


def gone(path: Path) -> bool:
    given_up = time.monotonic() + 10
    while path.exists() and time.monotonic() < given_up:
        time.sleep(0.05)
    return not path.exists()


def test_a_killed_server_leaves_no_shared_memory_behind():
    server = ServerProcess([sys.executable, "-c", SHARING], {})
    server.keep_running()
    segment = Path("/dev/shm", name_of_segment(server))
    assert segment.exists()  # its processes may still have to attach to it
    server.has_answered()
    assert gone(segment)  # whatever kills the server from now on
    server.end()


def test_a_server_that_is_ended_while_it_starts_leaves_no_shared_memory_behind():
    server = ServerProcess([sys.executable, "-c", SHARING], {})
    server.keep_running()
    segment = Path("/dev/shm", name_of_segment(server))
    others = shared_memory.SharedMemory(create=True, size=4096)
    try:
        server.end()
        assert not segment.exists()
        assert Path("/dev/shm", others.name).exists()
    finally:
        others.close()
        others.unlink()


class FilesOnly(VLLMBase):
    """An engine that only manages its transfer folder."""

    def update_weights(self, policy, version): ...

    async def generate(self, request): ...  # pyright: ignore


def test_the_transfer_folder_of_a_killed_trainer_is_removed(tmp_path: Path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    node = platform.node()
    stale = tmp_path / f"vagentrl-{node}-{ended.pid}-abc"
    kept = [
        tmp_path / f"vagentrl-{node}-{os.getpid()}-abc",
        tmp_path / f"vagentrl-{node}x-{ended.pid}-abc",  # from another machine
        tmp_path / f"vagentrl-vllm-{ended.pid}.log",
    ]
    for path in (stale, *kept):
        path.mkdir()
    engine = FilesOnly(None, str(tmp_path))
    ours = Path(engine._transfer_path("weights", 1)).parent
    assert sorted(tmp_path.iterdir()) == sorted([ours, *kept])
