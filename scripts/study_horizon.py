"""What a limit on turns is taken for: the end of the task, or a cut with a value after it.

    python scripts/study_horizon.py

Trains `configs/sokoban_vlm.yaml` with three seeds under either `data.at_limit`, into
`runs/horizon/`; runs that have ended are not run again. Prints a Markdown table (held-out success,
mean and standard deviation over seeds). One thread per run.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from compare_runs import load, mean_and_spread
from study import ROOT, Run, train
from study_algorithms import callbacks

CONFIG = "configs/sokoban_vlm.yaml"
ARMS = ("end", "bootstrap")


def table(runs: dict[str, list[dict]]) -> str:
    lines = [
        "| `at_limit` | before | half-way | each seed | after | each seed | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, seeds in runs.items():
        curves = [[each["val/success_rate"] for each in run["evaluations"]] for run in seeds]
        halfway = [curve[len(curve) // 2] for curve in curves]
        after = [curve[-1] for curve in curves]
        cells = [
            f"`{arm}`",
            mean_and_spread([curve[0] for curve in curves]),
            mean_and_spread(halfway),
            ", ".join(f"{value:.3f}" for value in halfway),
            mean_and_spread(after),
            ", ".join(f"{value:.3f}" for value in after),
            f"{statistics.mean(run['seconds']['total'] for run in seeds) / 60:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What is a limit on turns taken for?")
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
    print(table({arm: load(str(arguments.folder / arm / "seed_*")) for arm in ARMS}))


if __name__ == "__main__":
    main()
