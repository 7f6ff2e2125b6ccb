"""Compares training with and without a reward for true claims, from the same start.

    python scripts/study_world_model.py --jobs 2 --figure docs/figures/world_model.png

Trains `configs/sokoban_world_model.yaml` with three seeds in four arms, into `runs/world_model/`;
finished runs are not repeated. Without a reward, claims are judged and earn nothing; with it they
earn what the exact judge finds; in the third arm only predictions do; in the fourth arm predictions
earn what the agent's own next observation says of them, and no judge pays. Prints a Markdown table
(held-out episodes, scored by the exact judge; mean and standard deviation over seeds) and draws the
shares of right claims and the success of each iteration's episodes. For a given seed, all arms play
the same rooms. Each run uses one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from pathlib import Path

import matplotlib
from compare_runs import finish, load, mean_and_spread, save

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from study import ROOT, Run, folder_name, scalars, train

CONFIG = "configs/sokoban_world_model.yaml"
EXACT = {"class_path": "vagentrl_judges.exact_state.ExactState"}
SELF = {
    "class_path": "vagentrl.callbacks.SelfPredictionReward",
    "init_args": {
        "compare": EXACT,
        "representation": "structured",
        "coefficient": 0.4,
        "relative": True,
    },
}
ARMS = {
    "no reward": (0.0, 0.0),
    "exact judge": (0.4, 0.15),
    "exact judge, predictions": (0.0, 0.4),
    "no judge, predictions": (0.0, 0.0),
}
"""Rewards of a right observation and a right prediction in each arm; a solved room earns 1.1."""
SHOWN = {
    "observation_right": "observations all right",
    "prediction_right": "predictions all right",
    "success_rate": "success",
}


def callbacks(arm: str) -> str:
    """Return the setting for the configuration's callbacks, without pictures and checkpoints."""
    observation, prediction = ARMS[arm]
    settings = {
        "judge": EXACT,
        "observation_coefficient": observation,
        "prediction_coefficient": prediction,
        "relative": True,
    }
    listed = [{"class_path": "vagentrl.callbacks.WorldModelReward", "init_args": settings}]
    if arm.startswith("no judge"):
        listed.append(SELF)
    return f"--trainer.callbacks={json.dumps(listed)}"


def run_folder(arm: str, seed: int) -> Path:
    return ROOT / "runs/world_model" / folder_name(arm) / f"seed_{seed}"


def curve(run: dict, name: str) -> dict[int, float]:
    return {int(e["iteration"]): e[name] for e in run["evaluations"] if name in e}


def table(runs: dict[str, list[dict]]) -> str:
    lines = [
        "| held-out episodes | claims earn | before | after | each seed |",
        "|---|---|---|---|---|",
    ]
    for name, title in SHOWN.items():
        for arm, summaries in runs.items():
            curves = [curve(run, f"val/{name}") for run in summaries]
            first, *_, last = sorted(curves[0])
            cells = [title, arm]
            cells += [mean_and_spread([c[step] for c in curves]) for step in (first, last)]
            cells.append(", ".join(f"{c[last]:.3f}" for c in curves))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def collected(arm: str, name: str) -> list[list[float]]:
    """Return, for each run, the logged values of a rollout metric."""
    curves = []
    for folder in sorted(run_folder(arm, 1).parent.glob("seed_*")):
        curves.append(scalars(folder, f"rollout/{name}"))
    return curves


def draw(axes: Axes, arm: str, curves: list[list[float]], color: str) -> None:
    """Draw each run as a thin line and their mean as a thick one."""
    for each in curves:
        axes.plot(each, color=color, alpha=0.3, linewidth=1)
    means = [statistics.mean(values) for values in zip(*curves, strict=True)]
    axes.plot(means, color=color, linewidth=2.2, label=f"{arm} ({len(curves)} seeds)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with and without a reward for true claims.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--figure", type=Path, default=None)
    arguments = parser.parse_args()
    iterations = f"--trainer.max_epochs={arguments.iterations}"
    wanted = [
        Run(run_folder(arm, seed), CONFIG, seed, [callbacks(arm), iterations])
        for seed, arm in product(range(1, arguments.seeds + 1), ARMS)
    ]
    train(wanted, arguments.jobs)
    runs = {arm: load(str(run_folder(arm, 1).parent / "seed_*")) for arm in ARMS}
    print(table(runs))
    if arguments.figure is None:
        return
    figure, all_axes = pyplot.subplots(
        1, len(SHOWN), figsize=(4.6 * len(SHOWN), 4), layout="constrained"
    )
    for axes, (name, title) in zip(all_axes, SHOWN.items(), strict=True):
        for number, arm in enumerate(ARMS):
            draw(axes, arm, collected(arm, name), f"C{number}")
        finish(axes, title=title, ylabel="share, in training (T = 1)", ylim=None)
    save(figure, arguments.figure)


if __name__ == "__main__":
    main()
