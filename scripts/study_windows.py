"""Compares windows of 0, 1, 2, 4 and 8 earlier turns, with and without critic warm-up.

    python scripts/study_windows.py --memory
    python scripts/study_windows.py --figure docs/figures/windows.png

The first command plays episodes of 400 turns with each window and prints the longest context,
Python's memory and the seconds of the first and the last batch. An environment whose task ends
earlier goes on with the task of another seed, so that every episode has 400 turns.

The second trains a recipe as Verlog does: with turns as samples, the same number of turns of every
environment in a batch, dual-discount GAE, and KL in the reward; with three seeds for each window,
with and without critic warm-up, into `runs/windows/`. Finished runs are not repeated. It prints a
Markdown table and draws learning curves. The table has a held-out metric (`--metric`, success if
not given; mean and standard deviation over seeds), the turns of a held-out episode before and after
training, and the value loss of the first and of the last iteration in which the actor learns.
Each run uses one thread. Other arguments go to every run, such as
`--model.policy=runs/models/babyai_text`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import torch
import yaml
from benchmark_long_episode import play_long
from compare_runs import draw, finish, load, mean_and_spread, save

matplotlib.use("Agg")
from matplotlib import pyplot
from study import ROOT, Run, scalars, train

from vagentrl.cli.trainer import VagentCLI
from vagentrl.contexts import Window
from vagentrl.environment import Environment
from vagentrl.types import Observation, Reply, StepResult

WINDOWS = (0, 1, 2, 4, 8)
WARM_UP = {"rounds": 5, "batches": 4, "part": 0.5, "tolerance": 0.02}
"""Critic warm-up, scaled down: Verlog collects 40 batches and learns from a tenth in each of 5
rounds."""
TURNS = 400
"""Turns of an episode."""


class Endless(Environment):
    """Goes on with the task of another seed where a task ends, until an episode has all its turns.

    Args:
        env: Makes the environment.
        turns: Turns of an episode.
    """

    def __init__(self, env: Callable[[], Environment], turns: int = TURNS) -> None:
        self.environment = env()
        super().__init__(self.environment.format)
        self.turns = turns

    def system_prompt(self) -> str:
        return self.environment.system_prompt()

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self._seeds, self._played = (seed, transition_seed), 0
        return self.environment.reset(seed, transition_seed)

    def step(self, reply: Reply) -> StepResult:
        result = self.environment.step(reply)
        self._played += 1
        last = self._played == self.turns
        if last or not (result.terminated or result.truncated):
            return replace(result, truncated=last and not result.terminated)
        seed, luck = self._seeds
        self._seeds = (seed + 4, luck)  # a seed of the same split
        observation = self.environment.reset(*self._seeds)
        return replace(result, observation=observation, terminated=False, truncated=False)

    def close(self) -> None:
        self.environment.close()


# ------------------------------------------------------------------------------------------ memory


def measure_memory(config: str, settings: list[str], windows: list[int], turns: int) -> None:
    """Print what episodes of hundreds of turns cost with each window."""
    run = VagentCLI(["--config", config, *settings], run=False)
    make, model = run.datamodule.environments["train"], run.model.policy_name
    batch = max(turns // 8, 1)
    print("| window | longest context, tokens: first / last batch | MiB | seconds | ended |")
    print("|--:|--:|--:|--:|--:|")
    for window in windows:
        torch.manual_seed(0)
        batches = list(
            play_long(lambda: Endless(make, turns), model, Window(window), 16, turns, batch)
        )
        first, last = batches[0], batches[-1]
        print(
            f"| {window} | {first.longest} / {last.longest} | {first.held:.1f} / {last.held:.1f} "
            f"| {first.seconds:.1f} / {last.seconds:.1f} | {sum(each.ended for each in batches)} |",
            flush=True,
        )


# ---------------------------------------------------------------------------------------- learning


def run_folder(folder: Path, window: int, warm: bool, seed: int) -> Path:
    return folder / f"window_{window}{'_warm' if warm else ''}" / f"seed_{seed}"


def settings(
    window: int, warm: bool, iterations: int, environments: int, batch_turns: int
) -> list[str]:
    """Verlog's settings for a recipe, with one window."""
    callbacks: list[dict] = [
        {
            "class_path": "vagentrl.callbacks.KLControl",
            "init_args": {"coefficient": 0.01, "place": "reward", "estimator": "k1"},
        }
    ]
    if warm:
        callbacks.append({"class_path": "vagentrl.callbacks.CriticWarmup", "init_args": WARM_UP})
    # The rounds of the warm-up are iterations too, in which the actor does not learn.
    total = iterations + (WARM_UP["rounds"] if warm else 0)
    return [
        f"--trainer.max_epochs={total}",
        f"--trainer.check_val_every_n_epoch={max(iterations // 4, 1)}",
        f"--trainer.callbacks={json.dumps(callbacks)}",
        "--model.critic=own",
        "--model.advantage=DualDiscountGAE",
        "--data.context=vagentrl.contexts.Window",
        f"--data.context.turns={window}",
        f"--data.turns={batch_turns}",
        "--data.at_limit=bootstrap",
        f"--data.groups={environments}",
        "--data.group_size=1",
        f"--data.minibatch_size={environments}",
        "--data.passes=1",
        "--data.filter=KeepAll",
        "--data.val_envs=null",
    ]


def value_losses(run: Path, iterations: int) -> tuple[float, float]:
    """Value loss of the first iteration in which the actor learned, and of the last."""
    losses = scalars(run, "train/value_loss")
    return losses[max(len(losses) - iterations, 0)], losses[-1]


def row(folder: Path, window: int, warm: bool, iterations: int, metric: str) -> str:
    """One line of the table."""
    pattern = run_folder(folder, window, warm, 0).with_name("seed_*")
    runs = load(str(pattern))
    curves = [[each[metric] for each in run["evaluations"]] for run in runs]
    turns = [[run["evaluations"][end]["val/turns"] for run in runs] for end in (0, -1)]
    paths = sorted(pattern.parent.glob("seed_*/summary.json"))
    losses = [value_losses(path.parent, iterations) for path in paths]
    cells = [
        str(window),
        "yes" if warm else "no",
        mean_and_spread([curve[0] for curve in curves]),
        mean_and_spread([curve[len(curve) // 2] for curve in curves]),
        mean_and_spread([curve[-1] for curve in curves]),
        ", ".join(f"{curve[-1]:.3f}" for curve in curves),
        " → ".join(f"{statistics.mean(at_end):.0f}" for at_end in turns),
        " → ".join(f"{statistics.mean(values):.3f}" for values in zip(*losses, strict=True)),
        f"{statistics.mean(run['seconds']['total'] for run in runs):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def draw_curves(
    folder: Path, arms: Sequence[tuple[int, bool]], metric: str, figure_path: Path
) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharey=True)
    for window, warm in arms:
        runs = load(str(run_folder(folder, window, warm, 0).with_name("seed_*")))
        draw(axes[int(warm)], f"window {window}", runs, f"C{WINDOWS.index(window)}", metric)
    for side, title in zip(axes, ("without critic warm-up", "with critic warm-up"), strict=True):
        finish(side, title=title, ylim=(0, 1) if metric == "val/success_rate" else None)
    axes[0].set_ylabel(f"{metric} (T = 0.5)")
    save(figure, figure_path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare windows, with and without a warm critic.")
    parser.add_argument("--config", default="configs/babyai.yaml", help="the recipe to change")
    parser.add_argument("--memory", action="store_true", help="measure memory, train nothing")
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of an episode")
    parser.add_argument(
        "--limits", nargs="*", default=["turn_limit"],
        help="settings of the environment that limit an episode; all become --turns",
    )  # fmt: skip
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS), choices=WINDOWS)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40, help="in which the actor learns")
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--batch_turns", type=int, default=8, help="of each environment in a batch")
    parser.add_argument("--metric", default="val/success_rate", help="what the table shows")
    parser.add_argument("--val_episodes", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/windows")
    parser.add_argument("--figure", type=Path, default=None)
    arguments, others = parser.parse_known_args()
    torch.set_num_threads(1)
    limits = [f"--data.env.init_args.{name}={arguments.turns}" for name in arguments.limits]
    if arguments.memory:
        measure_memory(arguments.config, [*limits, *others], arguments.windows, arguments.turns)
        return
    name = yaml.safe_load((ROOT / arguments.config).read_text())["data"]["env"]["class_path"]
    folder = arguments.folder / name.rpartition(".")[2].lower()
    shared = [*limits, *others, f"--data.val_episodes={arguments.val_episodes}"]
    batch = arguments.environments, arguments.batch_turns
    arms = [(window, warm) for window in arguments.windows for warm in (False, True)]
    wanted = [  # ordered by seed, so that unfinished studies already have every arm
        Run(
            run_folder(folder, window, warm, seed),
            arguments.config,
            seed,
            [*shared, *settings(window, warm, arguments.iterations, *batch)],
        )
        for seed in range(1, arguments.seeds + 1)
        for window, warm in arms
    ]
    train(wanted, arguments.jobs)
    print("| window | warm-up | before | half-way | after | each seed | turns | value loss | s |")
    print("|--:|---|---|---|---|---|--:|---|--:|")
    for window, warm in arms:
        print(row(folder, window, warm, arguments.iterations, arguments.metric))
    if arguments.figure is not None:
        draw_curves(folder, arms, arguments.metric, arguments.figure)


if __name__ == "__main__":
    main()
