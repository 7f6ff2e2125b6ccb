"""A run ends soon after one of its processes has died, and says which."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vagentrl.callbacks import RankWatch
from vagentrl.errors import ConfigError

ROOT = Path(__file__).parents[2]


def survivor(ill: int, how: str) -> tuple[int, str]:
    """Run two ranks, of which one is ill; returns exit code and messages of the other one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "tests.callbacks.watched_rank"]
    both = [
        subprocess.Popen(
            [*command, str(rank), port, str(ill), how],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        _, said = both[1 - ill].communicate(timeout=150)
        return both[1 - ill].returncode, said
    finally:
        for process in both:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("ill", "how"), [(1, "dies"), (0, "dies"), (1, "freezes")])
def test_the_other_rank_ends_and_names_the_one_that_has_died(ill: int, how: str):
    code, said = survivor(ill, how)
    assert code == 1
    assert f"rank {ill} (process" in said
    assert "has given no sign of life for" in said
    assert "--ckpt_path last" in said


def test_the_other_rank_ends_with_the_error_of_the_one_that_failed():
    code, said = survivor(1, "fails")
    assert code == 1
    assert "rank 1 (process" in said
    assert "has failed: ValueError('no room')" in said


def test_ranks_that_leave_at_the_end_alarm_nobody():
    assert survivor(0, "leaves") == (0, "")


def test_a_time_that_would_end_every_run_is_refused():
    with pytest.raises(ConfigError, match="silence_s is 0; give a number of seconds above 0"):
        RankWatch(silence_s=0)
