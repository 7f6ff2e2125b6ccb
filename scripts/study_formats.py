"""Compares VAGEN's formats of thought on a world of pictures, at equal updates from one model.

    python scripts/study_formats.py sokoban --jobs 2 --figure docs/figures/formats_sokoban.png
    python scripts/study_formats.py navigation --jobs 2 --figure docs/figures/formats_navigation.png

First clones one model that answers in every format: it goes on from `tiny-four-worlds-vlm`, which
sees both worlds and knows the format `Grounding`, on a mixture of both worlds in all formats. Then
trains it in each format by the recipe `four_worlds` with the one world alone, without a reward for
claims, and in `WorldModeling` with one (the exact judge); into `runs/formats/`, where finished work
is not repeated. For a given seed all arms play the same starts. Prints a Markdown table of held-out
success and draws its curves. Each run uses one thread. Other arguments go to every run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib
import yaml
from compare_runs import draw, finish, load, mean_and_spread, save

matplotlib.use("Agg")
from matplotlib import pyplot
from study import ROOT, Run, folder_name, train

from vagentrl.cli.warmstart.command import run_warmstart

FORMATS = ("NoThink", "FreeThink", "Grounding", "TransitionModeling", "WorldModeling")
REWARDED = "WorldModeling, rewarded"
RECIPE = "configs/four_worlds.yaml"
WORLDS = {"sokoban": "boxes", "navigation": "room"}
"""What the recipe calls them."""
STAGE = {"noise": 0.5, "steps": 3000, "lr": 1e-3, "batch_size": 32, "turns": 2}
"""Of cloning: the demonstrator errs often, so there is something left to learn. The start model has
cloned `Grounding` for 6,400 steps; after few steps here it would be bad at the other formats."""
CHANGES = {
    "trainer.max_epochs": 12,
    "trainer.check_val_every_n_epoch": 4,
    "data.groups": 16,
    "data.minibatch_size": 96,
    "data.val_episodes": 256,
    "data.sampling.max_tokens": 128,
}
"""Of the recipe: one world's share of a batch, and room for two claims."""
JUDGED = {
    "class_path": "vagentrl.callbacks.WorldModelReward",
    "init_args": {
        "judge": {"class_path": "vagentrl_judges.exact_state.ExactState"},
        "observation_coefficient": 0.1,
        "prediction_coefficient": 0.1,
        "relative": True,
    },
}


def in_format(env: dict[str, Any], name: str) -> dict[str, Any]:
    """The world in another format; claims are written as JSON."""
    claims = name not in ("NoThink", "FreeThink")
    style: dict[str, Any] = {"class_path": f"vagentrl.formats.{name}"}
    style |= {"init_args": {"state": "structured"}} if claims else {}
    return env | {"init_args": env["init_args"] | {"format": style}}


def clone(recipe: dict[str, Any], output: Path, workers: int) -> None:
    """Make the model that every run starts from, unless it is there; on a GPU if there is one."""
    if (output / "README.md").is_file():
        return
    worlds = {
        f"{world}_{name.lower()}": in_format(env_of(recipe, world), name)
        for world in WORLDS
        for name in FORMATS
    }
    settings = {
        "output": str(output),
        "env": {"class_path": "vagentrl.Mixture", "init_args": {"worlds": worlds}},
        "actions": [],
        "context": recipe["data"]["context"],
        "start": recipe["model"]["policy"],
        "stages": [STAGE],
        "micro_batch_size": 16,
        "eval_episodes": 200,
        "accelerator": "auto",
        "workers": workers,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    config = output.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    run_warmstart(["--config", str(config)])


def env_of(recipe: dict[str, Any], world: str) -> dict[str, Any]:
    """A world of the recipe's mixture."""
    return recipe["data"]["env"]["init_args"]["worlds"][WORLDS[world]]


def settings_of(arm: str, recipe: dict[str, Any], world: str, policy: Path) -> list[str]:
    """What a run changes of the recipe."""
    name, _, rewarded = arm.partition(", ")
    callbacks = [
        callback
        for callback in recipe["trainer"]["callbacks"]
        if not callback["class_path"].endswith("ModelCheckpoint")
    ]
    own = {
        "model.policy": str(policy),
        "data.env": in_format(env_of(recipe, world), name),
        "trainer.callbacks": [*callbacks, JUDGED] if rewarded else callbacks,
    }
    return [
        f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in (CHANGES | own).items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="VAGEN's formats of thought, from one model.")
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--figure", type=Path, default=None)
    arguments, others = parser.parse_known_args()
    recipe = yaml.safe_load((ROOT / RECIPE).read_text())
    policy = ROOT / "runs/formats/model"
    clone(recipe, policy, arguments.jobs)
    folder = ROOT / "runs/formats" / arguments.world
    arms = [*FORMATS, REWARDED]
    wanted = [
        Run(
            folder / folder_name(arm) / f"seed_{seed}",
            RECIPE,
            seed,
            [*settings_of(arm, recipe, arguments.world, policy), *others],
        )
        for seed in range(1, arguments.seeds + 1)
        for arm in arms
    ]
    train(wanted, arguments.jobs)
    print("| format | tokens of a reply | before | after | each seed | seconds of a run |")
    print("|---|--:|--:|--:|---|--:|")
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, arm in enumerate(arms):
        runs = load(str(folder / folder_name(arm) / "seed_*"))
        after = [run["val_success_after"] for run in runs]
        tokens = [run["evaluations"][-1]["val/reply_tokens"] for run in runs]
        cells = [
            arm,
            f"{statistics.mean(tokens):.0f}",
            f"{statistics.mean(run['val_success_before'] for run in runs):.3f}",
            mean_and_spread(after),
            ", ".join(f"{value:.3f}" for value in after),
            f"{statistics.mean(run['seconds']['total'] for run in runs):.0f}",
        ]
        print("| " + " | ".join(cells) + " |")
        draw(axes, arm, runs, f"C{number}")
    if arguments.figure is not None:
        finish(axes, ylabel="held-out success (T = 0.5)")
        save(figure, arguments.figure)


if __name__ == "__main__":
    main()
