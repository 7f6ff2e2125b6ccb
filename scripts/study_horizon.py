"""What it changes that the limit on turns is the end of the task, or a cut with a value after it.

    python scripts/study_horizon.py

Trains `configs/sokoban_vlm.yaml` with three seeds under either `data.at_limit`, into
`runs/horizon/`; runs that have ended are not run again. Prints a Markdown table (held-out success
before and after training, mean and standard deviation over seeds). One thread per run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compare_runs import HEADER, load, row
from study import ROOT, Run, train
from study_algorithms import callbacks

CONFIG = "configs/sokoban_vlm.yaml"
ARMS = ("end", "bootstrap")


def main() -> None:
    parser = argparse.ArgumentParser(description="Is the limit on turns the end of the task?")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/horizon")
    arguments = parser.parse_args()
    shared = [
        f"--trainer.max_epochs={arguments.iterations}",
        "--trainer.check_val_every_n_epoch=10",
        callbacks("KLControl", "CriticWarmup"),
    ]
    wanted = [  # seed by seed, so that an early look shows both arms
        Run(
            arguments.folder / arm / f"seed_{seed}",
            CONFIG,
            seed,
            [f"--data.at_limit={arm}", *shared],
        )
        for seed in range(1, arguments.seeds + 1)
        for arm in ARMS
    ]
    train(wanted, arguments.jobs)
    print(HEADER)
    for arm in ARMS:
        print(row(f"`at_limit: {arm}`", load(str(arguments.folder / arm / "seed_*"))))


if __name__ == "__main__":
    main()
