"""Compares treating a turn limit as the end of the task with bootstrapping from the critic there.

    python scripts/study_horizon.py

Trains `configs/sokoban_vlm.yaml` with three seeds under either `data.at_limit`, into
`runs/horizon/`; runs that have ended are not run again. Prints a Markdown table (held-out success,
mean and standard deviation over seeds, and the value loss of the last iteration). One thread per
run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compare_runs import load, mean_and_spread
from study import ROOT, Run, scalars, train
from study_algorithms import callbacks

CONFIG = "configs/sokoban_vlm.yaml"
ARMS = ("end", "bootstrap")


def value_loss(run: Path) -> float:
    """The value loss of the last iteration."""
    return scalars(run, "train/value_loss")[-1]


def row(folder: Path) -> str:
    """One arm's line of the table, from the folder that holds its seeds."""
    runs = load(str(folder / "seed_*"))
    curves = [[each["val/success_rate"] for each in run["evaluations"]] for run in runs]
    halfway = [curve[len(curve) // 2] for curve in curves]
    after = [curve[-1] for curve in curves]
    losses = [value_loss(path.parent) for path in sorted(folder.glob("seed_*/summary.json"))]
    cells = [
        f"`{folder.name}`",
        mean_and_spread([curve[0] for curve in curves]),
        mean_and_spread(halfway),
        ", ".join(f"{value:.3f}" for value in halfway),
        mean_and_spread(after),
        ", ".join(f"{value:.3f}" for value in after),
        mean_and_spread(losses),
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the two settings of data.at_limit.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/horizon")
    arguments = parser.parse_args()
    shared = [
        f"--trainer.max_epochs={arguments.iterations}",
        f"--trainer.check_val_every_n_epoch={max(arguments.iterations // 2, 1)}",
        callbacks("KLControl", "CriticWarmup"),
    ]
    wanted = [  # ordered by seed, so that unfinished studies already have both arms
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
    print("| `at_limit` | before | half-way | each seed | after | each seed | value loss |")
    print("|---|---|---|---|---|---|---|")
    for arm in ARMS:
        print(row(arguments.folder / arm))


if __name__ == "__main__":
    main()
