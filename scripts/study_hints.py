"""Do hints that are often wrong teach what the agent can then do without them?

    python scripts/study_hints.py --jobs 2 --figure docs/figures/hints.png

Trains `configs/frozen_lake_hints.yaml` (GRPO, with a reward at the goal alone that a random walk
hardly ever reaches) without hints and with several shares of exploration, three seeds each, into
`runs/hints/`; runs that have ended are not run again. Prints a Markdown table (held-out success
without and with hints, mean and standard deviation over seeds) and draws the learning curves
without hints. One thread per run.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import matplotlib
import numpy as np
from compare_runs import draw, load, mean_and_spread

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator
from study import ROOT, Run, train

from vagentrl.cli.trainer import VagentCLI
from vagentrl.hints import HintedEnvironment
from vagentrl.types import Reply
from vagentrl_envs.frozen_lake import FrozenLake

CONFIG = "configs/frozen_lake_hints.yaml"
HINTS = "--data.env.init_args"
ARMS = {
    "no hints": f"{HINTS}.hint_share=0",
    "ε = 0": f"{HINTS}.epsilon=0",
    "ε = 0.1": f"{HINTS}.epsilon=0.1",
    "ε = 0.5": f"{HINTS}.epsilon=0.5",
    "ε = 0.9": f"{HINTS}.epsilon=0.9",
}


def run_folder(arm: str, seed: int) -> Path:
    name = arm.replace("ε = ", "epsilon_").replace(" ", "_").replace(".", "")
    return ROOT / "runs/hints" / name / f"seed_{seed}"


def hints_on_a_shortest_way(arm: str, lakes: int = 300) -> float:
    """Share of the hints that name a move nearer to the goal, along walks at random.

    More than the oracle's share is right: an action that is not the oracle's may be as good.
    """
    args = ["--config", CONFIG, ARMS[arm], f"{HINTS}.hint_share=1"]
    environment = VagentCLI(args, run=False).datamodule.environments["train"]()
    assert isinstance(environment, HintedEnvironment)
    game = environment.environment
    assert isinstance(game, FrozenLake)
    actions, rng, nearer = game.action_names, np.random.default_rng(0), []
    for seed in range(0, 2 * lakes, 2):
        environment.reset(seed)
        over = False
        while not over:
            assert environment.hint is not None
            distances, place = game.lake.distances(), game.player
            end = game.lake.move(place, actions.index(environment.hint.action or ""))
            nearer.append(distances.get(end, len(distances)) < distances[place])
            result = environment.step(Reply("", actions=(str(rng.choice(actions)),)))
            over = result.terminated or result.truncated
    return statistics.mean(nearer)


def table(runs: dict[str, list[dict]]) -> str:
    lines = [
        "| training | hints on a shortest path | before | half-way | after | each seed | "
        "with hints | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, seeds in runs.items():
        evaluations = [run["evaluations"] for run in seeds]
        halfway = [each[len(each) // 2]["val/success_rate"] for each in evaluations]
        after = [each[-1]["val/success_rate"] for each in evaluations]
        hinted = [each[-1]["val/hinted/success_rate"] for each in evaluations]
        cells = [
            arm,
            "–" if arm == "no hints" else f"{hints_on_a_shortest_way(arm):.2f}",
            mean_and_spread([each[0]["val/success_rate"] for each in evaluations]),
            mean_and_spread(halfway),
            mean_and_spread(after),
            ", ".join(f"{value:.3f}" for value in after),
            mean_and_spread(hinted),
            f"{statistics.mean(run['seconds']['total'] for run in seeds):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What do hints teach?")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--figure", type=Path, default=None)
    arguments = parser.parse_args()
    wanted = [  # seed by seed, so that an early look shows every arm
        Run(run_folder(arm, seed), CONFIG, seed, [ARMS[arm]])
        for seed in range(1, arguments.seeds + 1)
        for arm in arguments.arms
    ]
    train(wanted, arguments.jobs)
    runs = {arm: load(str(run_folder(arm, 0).with_name("seed_*"))) for arm in arguments.arms}
    print(table(runs))
    if arguments.figure is None:
        return
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, (arm, summaries) in enumerate(runs.items()):
        draw(axes, arm, summaries, f"C{number}")
    axes.set(xlabel="iteration", ylabel="held-out success without hints (T = 0.5)", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=8)
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.figure, dpi=130)


if __name__ == "__main__":
    main()
