"""Compares algorithms on several environments, with the same number of episodes and steps.

    python scripts/study_algorithms.py --jobs 2 --figure docs/figures/algorithms.png

Trains every algorithm on every environment with three seeds and 8 groups of 8 episodes per
iteration, into `runs/study/`; finished runs are not repeated. Prints a Markdown table per
environment (held-out success, mean and standard deviation over seeds; seconds of a run spent on
sampling, scoring and updating) and draws the learning curves. Each run uses one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from pathlib import Path

import matplotlib
from compare_runs import draw, finish, load, mean_and_spread, save

matplotlib.use("Agg")
from matplotlib import pyplot
from study import ROOT, Run, folder_name, train

BEDS = {
    "Sokoban": ("configs/sokoban_text.yaml", 15),
    "FrozenLake": ("configs/frozen_lake.yaml", 15),
    "Bandit": ("configs/bandit.yaml", 20),
}
"""Configuration and number of iterations of each environment."""


def callbacks(*names: str) -> str:
    """Return the setting for these callbacks, without pictures and checkpoints."""
    settings = {
        "KLControl": {"coefficient": 0.02, "place": "loss", "estimator": "k3"},
        "CriticWarmup": {},
    }
    listed = [
        {"class_path": f"vagentrl.callbacks.{name}", "init_args": settings[name]} for name in names
    ]
    return f"--trainer.callbacks={json.dumps(listed)}"


ALGORITHMS = {
    "PPO, Masked GAE": ["--model.advantage=MaskedGAE", callbacks("KLControl", "CriticWarmup")],
    "PPO, Bi-Level GAE": [
        "--model.advantage=BiLevelGAE",
        "--model.advantage.turn_lam=0.9",
        callbacks("KLControl", "CriticWarmup"),
    ],
    "GRPO": ["--model.advantage=GroupRelative", callbacks("KLControl")],
    "StarPO-S": [  # PPO without KL, on the half of the groups with the highest variance of return
        "--model.advantage=MaskedGAE",
        "--model.aggregation.mode=trajectory_mean",
        "--data.filter=TopFraction",
        "--data.filter.fraction=0.5",
        callbacks("CriticWarmup"),
    ],
}


def run_folder(bed: str, algorithm: str, seed: int) -> Path:
    return ROOT / "runs/study" / folder_name(bed) / folder_name(algorithm) / f"seed_{seed}"


def settings(bed: str, algorithm: str) -> list[str]:
    iterations = f"--trainer.max_epochs={BEDS[bed][1]}"
    return [*ALGORITHMS[algorithm], iterations, "--data.groups=8", "--data.group_size=8"]


def table(runs: dict[str, list[dict]]) -> str:
    lines = [
        "| algorithm | held-out before | after | each seed | generate s | score s | update s |",
        "|---|---|---|---|---|---|---|",
    ]
    for algorithm, seeds in runs.items():
        after = [run["val_success_after"] for run in seeds]
        seconds = [
            f"{statistics.mean(run['seconds'][stage] for run in seeds):.0f}"
            for stage in ("generate", "score", "update")
        ]
        before = mean_and_spread([run["val_success_before"] for run in seeds])
        each = ", ".join(f"{value:.3f}" for value in after)
        cells = [algorithm, before, mean_and_spread(after), each, *seconds]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare algorithms on several environments.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--beds", nargs="+", default=list(BEDS), choices=list(BEDS))
    parser.add_argument("--figure", type=Path, default=None)
    arguments = parser.parse_args()
    wanted = [  # ordered by seed, so that unfinished studies already have every algorithm
        Run(run_folder(bed, algorithm, seed), BEDS[bed][0], seed, settings(bed, algorithm))
        for seed in range(1, arguments.seeds + 1)
        for bed, algorithm in product(arguments.beds, ALGORITHMS)
    ]
    train(wanted, arguments.jobs)
    results = {
        bed: {name: load(str(run_folder(bed, name, 0).with_name("seed_*"))) for name in ALGORITHMS}
        for bed in arguments.beds
    }
    for bed, runs in results.items():
        print(f"\n### {bed}, {BEDS[bed][1]} iterations\n\n{table(runs)}")
    if arguments.figure is None:
        return
    figure, all_axes = pyplot.subplots(
        1, len(results), figsize=(4.6 * len(results), 4), layout="constrained", squeeze=False
    )
    for axes, (bed, runs) in zip(all_axes[0], results.items(), strict=True):
        for number, (name, summaries) in enumerate(runs.items()):
            draw(axes, name, summaries, f"C{number}")
        finish(axes, "lower right", title=bed, ylabel="held-out success (T = 0.5)")
    save(figure, arguments.figure)


if __name__ == "__main__":
    main()
