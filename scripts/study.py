"""Helpers of the studies: several runs of `vagentrl fit`, each in its own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Run:
    """A run of a study.

    Attributes:
        folder: The run's folder; its last two levels become the logger's name and version.
        config: Path of the configuration, relative to the project's root.
        seed: The training seed.
        settings: Command-line arguments that override the configuration.
    """

    folder: Path
    config: str
    seed: int
    settings: Sequence[str]


def folder_name(label: str) -> str:
    """A label of a study as the name of a folder."""
    return label.lower().replace(", ", "_").replace(" ", "_").replace("-", "_")


def scalars(run: Path, name: str) -> list[float]:
    """All values that a run logged under a name, the oldest first."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return [event.value for event in events.Scalars(name)]


def train(runs: Sequence[Run], jobs: int) -> None:
    """Run all runs without a summary, `jobs` at a time, with one thread each."""
    with ThreadPoolExecutor(jobs) as pool:
        for ended in [pool.submit(_train, run) for run in runs]:
            ended.result()


def _train(run: Run) -> None:
    if (run.folder / "summary.json").is_file():
        return
    command = [
        *(sys.executable, "-m", "vagentrl", "fit", "--config", run.config),
        *run.settings,
        f"--seed_everything={run.seed}",
        f"--trainer.logger.init_args.save_dir={run.folder.parent.parent}",
        f"--trainer.logger.init_args.name={run.folder.parent.name}",
        f"--trainer.logger.init_args.version={run.folder.name}",
    ]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stderr[-3000:]}")
    print(run.folder, file=sys.stderr)
