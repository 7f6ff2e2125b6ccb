"""What becomes of a batch that is being played ahead when a run on several ranks fails."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import runs

ROOT = Path(__file__).parents[2]
PATH = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
SETTINGS = (
    *runs.AHEAD, "--trainer.max_epochs=9", "--trainer.limit_val_batches=0",
    "--trainer.devices=2", "--trainer.strategy=ddp",
    "--trainer.callbacks+=vagentrl.callbacks.RankWatch", "--trainer.callbacks.silence_s=4",
)  # fmt: skip


def start(*settings: str) -> list[subprocess.Popen[str]]:
    """Start both ranks of a run, each by itself, as a launcher of several nodes does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "vagentrl", "fit"]
    command += runs.arguments(*SETTINGS, *settings)
    where = PATH | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            command,
            env=os.environ | where | {"LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]


def ended(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """The exit codes of both ranks, and what they said."""
    try:
        return [(rank.wait(), said) for rank in ranks for said in rank.communicate(timeout=60)[1:]]
    finally:
        for rank in ranks:
            rank.kill()


def test_an_error_in_the_background_of_one_rank_ends_both(run_dir: Path):
    said = ended(start("--trainer.callbacks+=tests.end_to_end.ahead.IllOnRank1"))
    assert all(code == 1 for code, _ in said)
    assert all("the player of rank 1 is ill" in text for _, text in said)


@pytest.mark.parametrize("interrupted", [(0, 1), (1,)], ids=["both", "one"])
def test_an_interrupt_ends_the_episodes_that_are_played_ahead(
    interrupted: tuple[int, ...], run_dir: Path
):
    ranks = start("--data.env=tests.end_to_end.ahead.Dawdling")
    deadline = time.monotonic() + 90
    while not all(Path(f"began_{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < deadline and all(rank.poll() is None for rank in ranks)
        time.sleep(0.1)
    for rank in interrupted:
        ranks[rank].send_signal(signal.SIGINT)
    codes = [code for code, _ in ended(ranks)]
    assert 0 not in codes
    assert 130 in [codes[rank] for rank in interrupted]  # the other may hear of it by its failure
