"""Compares credit per turn with a critic, by groups and by continuations, at equal sampled tokens.

    python scripts/study_turn_credit.py --figure docs/figures/turn_credit.png

Trains `configs/sokoban_vlm.yaml` with each estimator and three seeds, into `runs/turn_credit/`;
runs that have ended are not run again. VineTurn plays fewer groups of episodes an iteration, in
minibatches that are smaller by as much, so that every run takes as many optimizer steps and samples
about as many tokens, continuations included. One more arm lets it play as many episodes as the
others and sample the tokens of its continuations on top. Prints a Markdown table: held-out success
where a run had sampled half of the budget, and all of it, interpolated between evaluations, and at
its end. Draws held-out success against sampled tokens. One thread per run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import accumulate
from pathlib import Path

import matplotlib
import numpy as np
from compare_runs import finish, mean_and_spread, save
from study import ROOT, Run, folder_name, scalars, train
from study_algorithms import callbacks

matplotlib.use("Agg")
from matplotlib import pyplot

CONFIG = "configs/sokoban_vlm.yaml"
GROUPS = 16
MINIBATCH = 32
WITHOUT_CRITIC = callbacks("KLControl")


def estimator(name: str, **arguments: float) -> list[str]:
    """The settings that choose an estimator."""
    given = (f"--model.advantage.{argument}={value}" for argument, value in arguments.items())
    return [f"--model.advantage={name}", *given]


ARMS: dict[str, tuple[list[str], str, int]] = {
    "Bi-Level GAE": (
        estimator("BiLevelGAE", turn_gamma=0.95, turn_lam=0.9),
        callbacks("KLControl", "CriticWarmup"),
        GROUPS,
    ),
    "GiGPO": (estimator("GiGPO"), WITHOUT_CRITIC, GROUPS),
    "TurnGroupRelative": (
        estimator("TurnGroupRelative", turn_gamma=0.95),
        WITHOUT_CRITIC,
        GROUPS,
    ),
    "VineTurn, 2 from every 3rd turn": (
        estimator("VineTurn", continuations=2, every=3),
        WITHOUT_CRITIC,
        4,
    ),
    "VineTurn, 1 from every 2nd turn": (
        estimator("VineTurn", continuations=1, every=2, turn_lam=0.5),
        WITHOUT_CRITIC,
        5,
    ),
    "VineTurn, as many episodes": (
        estimator("VineTurn", continuations=2, every=3),
        WITHOUT_CRITIC,
        GROUPS,
    ),
}
"""Estimator, callbacks and groups of episodes in an iteration, of each arm."""


def settings(arm: str, iterations: int) -> list[str]:
    chosen, extras, groups = ARMS[arm]
    return [
        *chosen,
        extras,
        f"--trainer.max_epochs={iterations}",
        f"--trainer.check_val_every_n_epoch={max(iterations // 6, 1)}",
        f"--data.groups={groups}",
        f"--data.minibatch_size={max(4, MINIBATCH * groups // GROUPS // 4 * 4)}",
    ]


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    return folder / folder_name(arm) / f"seed_{seed}"


def curve(run: Path) -> tuple[list[float], list[float]]:
    """Tokens that had been sampled for learning at each evaluation, and its success."""
    evaluations = json.loads((run / "summary.json").read_text())["evaluations"]
    sampled = scalars(run, "rollout/sampled_tokens")
    totals = [0.0, *accumulate(sampled)]
    # the rounds of a critic warm-up share one batch, so that they sample once
    shared = int(evaluations[-1]["iteration"]) - len(sampled)
    at = [max(int(one["iteration"]) - shared, 0) for one in evaluations]
    return [totals[number] for number in at], [one["val/success_rate"] for one in evaluations]


def row(arm: str, curves: list[tuple[list[float], list[float]]], budget: float) -> str:
    cells = [arm, mean_and_spread([success[0] for _, success in curves])]
    for share in (0.5, 1.0):
        reached = [float(np.interp(share * budget, *one)) for one in curves]
        cells += [mean_and_spread(reached), ", ".join(f"{value:.3f}" for value in reached)]
    tokens = statistics.mean(one[0][-1] for one in curves)
    cells += [mean_and_spread([success[-1] for _, success in curves]), f"{tokens / 1000:.0f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare estimators of credit per turn.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/turn_credit")
    parser.add_argument("--figure", type=Path, default=None)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    seeds = range(1, arguments.seeds + 1)
    wanted = [  # ordered by seed, so that unfinished studies already have all arms
        Run(run_folder(folder, arm, seed), CONFIG, seed, settings(arm, arguments.iterations))
        for seed in seeds
        for arm in arguments.arms
    ]
    train(wanted, arguments.jobs)
    curves = {arm: [curve(run_folder(folder, arm, s)) for s in seeds] for arm in arguments.arms}
    budget = min(tokens[-1] for runs in curves.values() for tokens, _ in runs)
    half, whole = (f"at {share * budget / 1000:.0f}k tokens" for share in (0.5, 1))
    print(
        f"| estimator | before | {half} | each seed | {whole} | each seed "
        "| at the end | sampled, k |"
    )
    print("|---|---|---|---|---|---|---|--:|")
    for arm, runs in curves.items():
        print(row(arm, runs, budget))
    if arguments.figure is None:
        return
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, (arm, runs) in enumerate(curves.items()):
        for tokens, success in runs:
            axes.plot(tokens, success, color=f"C{number}", alpha=0.3, linewidth=1)
        grid = np.linspace(0, min(tokens[-1] for tokens, _ in runs), 50)
        means = np.mean([np.interp(grid, *one) for one in runs], axis=0)
        axes.plot(grid, means, color=f"C{number}", linewidth=2.2, label=arm)
    finish(axes, "lower right", xlabel="sampled tokens", ylabel="held-out success (T = 0.5)")
    save(figure, arguments.figure)


if __name__ == "__main__":
    main()
