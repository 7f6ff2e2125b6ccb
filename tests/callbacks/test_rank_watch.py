"""A run ends soon after one of its processes has died, and says which."""

import logging
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from vagentrl.callbacks import RankWatch
from vagentrl.errors import ConfigError

NOTHING: Any = None
BROKEN = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")


def take_part(rank: int, port: int, ill: int, how: str, log: str) -> None:
    """One of two ranks: dies, freezes, fails or leaves as it is told."""
    logging.basicConfig(filename=log, force=True)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo")
    watch = RankWatch(silence_s=2)
    watch.setup(NOTHING, NOTHING, "fit")
    if how == "leaves":
        watch.teardown(NOTHING, NOTHING, "fit")
        os._exit(0)
    if rank == ill and how in ("dies", "dies and breaks"):
        os.kill(os.getpid(), signal.SIGKILL)
    if rank != ill and how in ("dies and breaks", "breaks"):
        watch.on_exception(NOTHING, NOTHING, BROKEN)
        os._exit(3)
    if rank == ill and how == "freezes":
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == ill and how == "fails":
        watch.on_exception(NOTHING, NOTHING, ValueError("no room"))
    time.sleep(200)  # stands for a collective that the other rank never joins


def survivor(folder: Path, ill: int, how: str) -> tuple[int | None, str]:
    """Run two ranks, of which one is ill; returns exit code and messages of the other one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")  # a new interpreter would import for seconds
    logs = [folder / f"{rank}.log" for rank in range(2)]
    both = [
        context.Process(target=take_part, args=(rank, port, ill, how, str(logs[rank])))
        for rank in range(2)
    ]
    for process in both:
        process.start()
    try:
        both[1 - ill].join(150)
        return both[1 - ill].exitcode, logs[1 - ill].read_text()
    finally:
        for process in both:
            process.kill()
            process.join()


@pytest.mark.parametrize(("ill", "how"), [(1, "dies"), (0, "dies"), (1, "freezes")])
def test_the_other_rank_ends_and_names_the_one_that_has_died(ill: int, how: str, tmp_path: Path):
    code, said = survivor(tmp_path, ill, how)
    assert code == 1
    assert f"rank {ill} (process" in said
    assert "has given no sign of life for" in said
    assert "--ckpt_path last" in said


def test_the_other_rank_ends_with_the_error_of_the_one_that_failed(tmp_path: Path):
    code, said = survivor(tmp_path, 1, "fails")
    assert code == 1
    assert "rank 1 (process" in said
    assert "has failed: ValueError('no room')" in said


@pytest.mark.parametrize("ill", [0, 1])
def test_an_error_of_a_broken_connection_waits_for_the_name_of_the_dead(ill: int, tmp_path: Path):
    code, said = survivor(tmp_path, ill, "dies and breaks")
    assert code == 1
    assert f"rank {ill} (process" in said
    assert "has given no sign of life for" in said


def test_a_broken_connection_of_ranks_that_all_live_is_raised(tmp_path: Path):
    assert survivor(tmp_path, 1, "breaks") == (3, "")


@pytest.mark.parametrize("other", [0, 1])
def test_ranks_that_leave_at_the_end_alarm_nobody(other: int, tmp_path: Path):
    assert survivor(tmp_path, 1 - other, "leaves") == (0, "")


def test_a_time_that_would_end_every_run_is_refused():
    with pytest.raises(ConfigError, match="silence_s is 0; give a number of seconds above 0"):
        RankWatch(silence_s=0)
