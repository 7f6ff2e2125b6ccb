"""Compares one run on a mixture of worlds with a run on each world alone, at equal episodes.

    python scripts/study_mixture.py --figure docs/figures/three_worlds.png

Trains a recipe whose `data.env` is a mixture of worlds with equal weights, and, from the same
model, one run on each of its worlds with that world's share of the groups and of a minibatch, into
`runs/mixture/`. Every world thus gets as many episodes, in as many optimizer steps. Finished runs
are not repeated. Prints a Markdown table of the held-out success of each world before and after,
and draws learning curves. Each run uses one thread. Other arguments go to every run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib
import yaml
from compare_runs import draw, finish, load, mean_and_spread, save

matplotlib.use("Agg")
from matplotlib import pyplot
from study import ROOT, Run, train

MIXED = "mixture"


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    return folder / arm / f"seed_{seed}"


def alone(data: dict, world: str) -> list[str]:
    """The settings of a run on one of the recipe's worlds."""
    worlds = data["env"]["init_args"]["worlds"]
    return [
        f"--data.env={json.dumps(worlds[world])}",
        f"--data.groups={data['groups'] // len(worlds)}",
        f"--data.minibatch_size={data['minibatch_size'] // len(worlds)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="A mixture of worlds against each world alone.")
    parser.add_argument("--config", default="configs/three_worlds.yaml")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/mixture")
    parser.add_argument("--figure", type=Path, default=None)
    arguments, others = parser.parse_known_args()
    data = yaml.safe_load((ROOT / arguments.config).read_text())["data"]
    worlds = list(data["env"]["init_args"]["worlds"])
    arms = {MIXED: [], **{world: alone(data, world) for world in worlds}}
    wanted = [  # ordered by seed, so that unfinished studies already have every arm
        Run(
            run_folder(arguments.folder, arm, seed),
            arguments.config,
            seed,
            [*settings, *others],
        )
        for seed in range(1, arguments.seeds + 1)
        for arm, settings in arms.items()
    ]
    train(wanted, arguments.jobs)
    runs = {
        arm: load(str(run_folder(arguments.folder, arm, 0).with_name("seed_*"))) for arm in arms
    }
    print("| world | before | after, alone | after, in the mixture | each seed in the mixture |")
    print("|---|---|---|---|---|")
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, world in enumerate(worlds):
        metric = f"val/{world}/success_rate"
        mixed = [[each[metric] for each in run["evaluations"]] for run in runs[MIXED]]
        single = [run["evaluations"][-1]["val/success_rate"] for run in runs[world]]
        cells = [
            world,
            mean_and_spread([curve[0] for curve in mixed]),
            mean_and_spread(single),
            mean_and_spread([curve[-1] for curve in mixed]),
            ", ".join(f"{curve[-1]:.3f}" for curve in mixed),
        ]
        print("| " + " | ".join(cells) + " |")
        draw(axes, f"{world}, in the mixture", runs[MIXED], f"C{number}", metric)
        draw(axes, f"{world}, alone", runs[world], f"C{number}")
        axes.lines[-1].set_linestyle("--")
    for arm, each in runs.items():
        seconds = [run["seconds"]["total"] for run in each]
        print(f"{arm}: {', '.join(f'{value:.0f}' for value in seconds)} s")
    if arguments.figure is not None:
        finish(axes, "lower right", ylabel="held-out success (T = 0.5)")
        save(figure, arguments.figure)


if __name__ == "__main__":
    main()
