"""Runs that are killed at random moments resume to the weights of an uninterrupted run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KILLS = 4  # `python -m scripts.kill_runs --kills 20` takes longer and finds more


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        *((mode, ()) for mode in ("single", "ddp", "deepspeed", "fsdp2")),
        *((mode, ("--background",)) for mode in ("single", "fsdp2")),
    ],
)
def test_killed_runs_resume_bit_by_bit_and_never_from_a_torn_checkpoint(
    mode: str, settings: tuple[str, ...]
):
    if mode == "deepspeed":
        pytest.importorskip("deepspeed")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "scripts.kill_runs", mode, *settings),
            *("--kills", str(KILLS), "--seed", "1"),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4000:]
    report = json.loads(ran.stdout.splitlines()[-1])
    assert report["different"] == []
    assert report["kills"] == KILLS
    assert report["resumed"] >= 1 and report["finished"] >= 1
