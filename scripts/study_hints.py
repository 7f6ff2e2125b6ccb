"""Tests whether training with often wrong hints improves the agent's success without hints.

    python scripts/study_hints.py --jobs 2 --figure docs/figures/hints.png
    python scripts/study_hints.py --task search_qa --figure docs/figures/hints_search_qa.png

Trains one task with GRPO without hints and with several values of epsilon, three seeds each, into
`runs/hints/TASK/`; finished runs are not repeated. Prints a Markdown table (held-out success
without and with hints, mean and standard deviation over seeds) and draws the learning curves
without hints. Each run uses one thread. `--quick` tries the study with one tiny iteration.

The lake has a recipe with hints and a model that was made to follow them. For another task both are
derived from its own recipes: the environment gets scripted hints, whose share falls from 1 to 0,
and a tiny model is made first by the recipe of its warm start, with a demonstrator that does nine
times in ten what a hint says.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import matplotlib
import numpy as np
import yaml
from compare_runs import draw, finish, load, mean_and_spread, save

matplotlib.use("Agg")
from matplotlib import pyplot
from study import ROOT, Run, train

from vagentrl.cli.trainer import VagentCLI
from vagentrl.environment import Environment
from vagentrl.hints import HintedEnvironment
from vagentrl.types import Reply

HINTS = "--data.env.init_args"
ARMS = {
    "no hints": f"{HINTS}.hint_share=0",
    "ε = 0": f"{HINTS}.epsilon=0",
    "ε = 0.1": f"{HINTS}.epsilon=0.1",
    "ε = 0.5": f"{HINTS}.epsilon=0.5",
    "ε = 0.9": f"{HINTS}.epsilon=0.9",
}
RIGHT = 0.7
"""Probability that a hint to exploit is the oracle's."""
OBEYS = 0.9
"""How often the demonstrator of a derived warm start does what a hint says."""


@dataclass(frozen=True)
class Task:
    """A task to study.

    Attributes:
        recipe: Its recipe; if it has no hints, one with hints is derived from it.
        warm_start: The recipe of its tiny model; None if the model of `recipe` follows hints.
        iterations: Iterations of training; None for the recipe's own.
    """

    recipe: str
    warm_start: str | None = None
    iterations: int | None = None


TASKS = {
    "lake": Task("configs/frozen_lake_hints.yaml"),
    "search_qa": Task("configs/search_qa.yaml", "configs/warmstart/search_qa_tiny.yaml"),
    "support": Task("configs/support.yaml", "configs/warmstart/support_tiny.yaml", 20),
}


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    name = arm.replace("ε = ", "epsilon_").replace(" ", "_").replace(".", "")
    return folder / name / f"seed_{seed}"


# ------------------------------------------------------------------------------ recipes with hints


def hinted(env: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The configuration of an environment, wrapped so that it gives scripted hints."""
    model = {"class_path": "vagentrl.hints.ScriptedHintModel", "init_args": {"right": RIGHT}}
    # A tiny model does not read the note, which is for models that know the language.
    wrapped = {"env": env, "hint_model": model, "note": "", **settings}
    return {"class_path": "vagentrl.hints.HintedEnvironment", "init_args": wrapped}


def derive_recipe(recipe: dict[str, Any], policy: str, iterations: int) -> dict[str, Any]:
    """The recipe with hints that fade out, evaluated without and with them."""
    env, data = recipe["data"]["env"], dict(recipe["data"])
    fading = {"start": 1.0, "end": 0.0, "iterations": max(3 * iterations // 4, 1)}
    data["env"] = hinted(env, epsilon=0.1, hint_share=fading)
    data["val_envs"] = {"hinted": hinted(env, epsilon=0.1, hint_share=1.0, hint_held_out=True)}
    trainer = {**recipe["trainer"], "max_epochs": iterations}
    return {
        **recipe,
        "trainer": trainer,
        "model": {**recipe["model"], "policy": policy},
        "data": data,
    }


def derive_warm_start(recipe: dict[str, Any], output: str) -> dict[str, Any]:
    """The warm start with a hint in half of the turns, which the demonstrator mostly follows."""
    env = hinted(recipe["env"], epsilon=0.5, hint_share=0.5)
    stages = [{**stage, "obeys": OBEYS} for stage in recipe["stages"]]
    return {**recipe, "output": output, "env": env, "stages": stages}


def prepare(task: Task, folder: Path, iterations: int | None, quick: bool) -> Path:
    """Write the recipe with hints and make its model, unless they are there; returns the recipe."""
    if task.warm_start is None:
        return ROOT / task.recipe
    model, recipe = folder / "model", folder / "recipe.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    plain = yaml.safe_load((ROOT / task.recipe).read_text())
    planned: int = iterations or task.iterations or plain["trainer"]["max_epochs"]
    recipe.write_text(yaml.safe_dump(derive_recipe(plain, str(model), planned)))
    if (model / "config.json").is_file():
        return recipe
    warm_start = derive_warm_start(yaml.safe_load((ROOT / task.warm_start).read_text()), str(model))
    if quick:
        warm_start["stages"] = [{**warm_start["stages"][0], "steps": 4}]
        warm_start["eval_episodes"] = 8
    path = folder / "warm_start.yaml"
    path.write_text(yaml.safe_dump(warm_start))
    command = [sys.executable, "-m", "vagentrl", "warmstart", "--config", str(path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    return recipe


# ------------------------------------------------------------------------------- how good they are


def helps(game: Environment, seed: int, replies: Sequence[Reply], action: str) -> bool | None:
    """Whether an action after these replies makes the oracle's plan shorter.

    None where that is unknown: the oracle has no plan, or the limit on turns cuts the episode off.
    """
    game.reset(seed)
    for reply in replies:
        game.step(reply)
    before = game.oracle()
    if not before:
        return None
    result = game.step(Reply("", actions=(action,)))
    if result.terminated or result.truncated:
        return True if result.metrics["success"] else (False if result.terminated else None)
    after = game.oracle()
    return after is not None and len(after) < len(before)


def share_of_good_hints(recipe: Path, arm: str, episodes: int = 100) -> float:
    """The share of hints, along random play, after which the oracle's plan is shorter.

    The share is larger than `RIGHT`, because other actions than the oracle's may be as good.
    """
    args = ["--config", str(recipe), ARMS[arm], f"{HINTS}.hint_share=1"]
    make: Callable[[], Environment] = VagentCLI(args, run=False).datamodule.environments["train"]
    environment, other = make(), make()
    assert isinstance(environment, HintedEnvironment) and isinstance(other, HintedEnvironment)
    game, rng, nearer = other.environment, np.random.default_rng(0), []
    for seed in range(0, 2 * episodes, 2):
        environment.reset(seed)
        replies: list[Reply] = []
        over = False
        while not over:
            if environment.hint is not None:
                good = helps(game, seed, replies, environment.hint.action or "")
                nearer += [] if good is None else [good]
            replies.append(Reply("", actions=random_actions(environment, rng)))
            result = environment.step(replies[-1])
            over = result.terminated or result.truncated
    return statistics.mean(nearer)


def random_actions(environment: Environment, rng: np.random.Generator) -> tuple[str, ...]:
    drawn = environment.random_actions(Random(int(rng.integers(2**32))))
    assert drawn, "the study needs an environment that can play at random"
    return drawn


# --------------------------------------------------------------------------------------- the table


def table(recipe: Path, runs: dict[str, list[dict]]) -> str:
    lines = [
        "| training | good hints | before | half-way | after | each seed | with hints | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, seeds in runs.items():
        evaluations = [run["evaluations"] for run in seeds]
        halfway = [each[len(each) // 2]["val/success_rate"] for each in evaluations]
        after = [each[-1]["val/success_rate"] for each in evaluations]
        hinted = [each[-1]["val/hinted/success_rate"] for each in evaluations]
        cells = [
            arm,
            "–" if arm == "no hints" else f"{share_of_good_hints(recipe, arm):.2f}",
            mean_and_spread([each[0]["val/success_rate"] for each in evaluations]),
            mean_and_spread(halfway),
            mean_and_spread(after),
            ", ".join(f"{value:.3f}" for value in after),
            mean_and_spread(hinted),
            f"{statistics.mean(run['seconds']['total'] for run in seeds):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shared(quick: bool) -> list[str]:
    """Settings of all runs."""
    # GRPO learns nothing from a group whose members all fail or all succeed
    settings = ["--data.filter=DynamicSampling", "--data.filter.rounds=1"]
    if quick:
        settings += ["--trainer.max_epochs=1", "--data.groups=2", "--data.group_size=2"]
        settings += ["--data.minibatch_size=4", "--data.val_episodes=4"]
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with and without hints.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--task", default="lake", choices=list(TASKS))
    parser.add_argument(
        "--iterations", type=int, default=None, help="of a derived recipe; the task's by default"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/hints")
    parser.add_argument(
        "--quick", action="store_true", help="one tiny iteration of everything, to try the study"
    )
    parser.add_argument("--figure", type=Path, default=None)
    arguments = parser.parse_args()
    folder = arguments.folder / arguments.task
    recipe = prepare(TASKS[arguments.task], folder, arguments.iterations, arguments.quick)
    wanted = [  # ordered by seed, so that unfinished studies already have every arm
        Run(run_folder(folder, arm, seed), str(recipe), seed, [ARMS[arm], *shared(arguments.quick)])
        for seed in range(1, arguments.seeds + 1)
        for arm in arguments.arms
    ]
    train(wanted, arguments.jobs)
    runs = {
        arm: load(str(run_folder(folder, arm, 0).with_name("seed_*"))) for arm in arguments.arms
    }
    print(table(recipe, runs))
    if arguments.figure is None:
        return
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, (arm, summaries) in enumerate(runs.items()):
        draw(axes, arm, summaries, f"C{number}")
    finish(axes, "upper left", ylabel="held-out success without hints (T = 0.5)")
    save(figure, arguments.figure)


if __name__ == "__main__":
    main()
