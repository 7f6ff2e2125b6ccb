"""Compares training with and without a reward for true claims, from the same start.

    python scripts/study_world_model.py --figure docs/figures/world_model.png

Trains `configs/sokoban_world_model.yaml` with three seeds, once as it is and once with claims that
are judged but not rewarded, into `runs/world_model/`; finished runs are not repeated. Prints a
Markdown table (held-out episodes; mean and standard deviation over seeds) and draws the shares of
right claims and the success of each iteration's episodes. For a given seed, both arms play the same
rooms. Each run uses one thread.
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
from study import ROOT, Run, scalars, train

CONFIG = "configs/sokoban_world_model.yaml"
ARMS = {"without": (0.0, 0.0), "with": (0.4, 0.15)}
"""Rewards of a right observation and a right prediction in each arm; a solved room earns 1.1."""
SHOWN = {
    "observation_right": "observations all right",
    "prediction_right": "predictions all right",
    "success_rate": "success",
}


def callbacks(observation: float, prediction: float) -> str:
    """Return the setting for the configuration's callbacks, without pictures and checkpoints."""
    settings = {
        "judge": {"class_path": "vagentrl_judges.exact_state.ExactState"},
        "observation_coefficient": observation,
        "prediction_coefficient": prediction,
        "relative": True,
        "skill": False,  # predictions earn their score, as when the study was made
    }
    listed = [{"class_path": "vagentrl.callbacks.WorldModelReward", "init_args": settings}]
    return f"--trainer.callbacks={json.dumps(listed)}"


def run_folder(arm: str, seed: int) -> Path:
    return ROOT / "runs/world_model" / arm / f"seed_{seed}"


def curve(run: dict, name: str) -> dict[int, float]:
    return {int(e["iteration"]): e[name] for e in run["evaluations"] if name in e}


def table(runs: dict[str, list[dict]]) -> str:
    lines = [
        "| held-out episodes | reward for claims | before | after | each seed |",
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
    for folder in sorted((ROOT / "runs/world_model" / arm).glob("seed_*")):
        curves.append(scalars(folder, f"rollout/{name}"))
    return curves


def draw(axes: Axes, arm: str, curves: list[list[float]], color: str) -> None:
    """Draw each run as a thin line and their mean as a thick one."""
    for each in curves:
        axes.plot(each, color=color, alpha=0.3, linewidth=1)
    means = [statistics.mean(values) for values in zip(*curves, strict=True)]
    axes.plot(means, color=color, linewidth=2.2, label=f"{arm} reward ({len(curves)} seeds)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with and without a reward for true claims.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--figure", type=Path, default=None)
    arguments = parser.parse_args()
    iterations = f"--trainer.max_epochs={arguments.iterations}"
    wanted = [
        Run(run_folder(arm, seed), CONFIG, seed, [callbacks(*ARMS[arm]), iterations])
        for seed, arm in product(range(1, arguments.seeds + 1), ARMS)
    ]
    train(wanted, arguments.jobs)
    runs = {arm: load(str(ROOT / "runs/world_model" / arm / "seed_*")) for arm in ARMS}
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
