"""Trains under a judge that can be fooled, with and without defences.

    python scripts/study_judge_attack.py --jobs 2 --figure docs/figures/judge_attack.png
    python scripts/study_judge_attack.py --dry_run        # a minute: does every arm train?

Trains `configs/sokoban_world_model.yaml` with three seeds in two arms, into `runs/judge_attack/`;
finished runs are not repeated. The start is the recipe's model, trained for a while on a
demonstrator that leaves 15 % of its states empty, as language models are vague now and then. The
arm ``undefended`` is paid by `scripts.gullible_judge.GullibleJudge` alone, which believes what has
no numbers. ``defended`` adds filters, templates, the comparison of predictions with "nothing
changes", and an audit by the exact judge of one claim in four. Prints a Markdown table of held-out
episodes, in which the exact judge scores all claims (mean and standard deviation over seeds), and
draws the success and the share of right claims of each iteration's episodes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
from compare_runs import finish, load, mean_and_spread, save
from lightning import seed_everything

matplotlib.use("Agg")
from matplotlib import pyplot
from study import ROOT, Run, scalars, train

from vagentrl.cli.trainer import VagentCLI
from vagentrl.cli.warmstart import Demonstrator, Stage
from vagentrl.cli.warmstart.cloning import Demonstrations, clone
from vagentrl.contexts import FullHistory
from vagentrl.models.load import checkpoint_path, context_length, load_config, load_model
from vagentrl.rollout.renderer import Renderer

CONFIG = "configs/sokoban_world_model.yaml"
EXACT = {"class_path": "vagentrl_judges.exact_state.ExactState"}
GULLIBLE = {"class_path": "scripts.gullible_judge.GullibleJudge"}
DEFENCES = {
    "filters": [
        {"class_path": f"vagentrl.claims.{name}"}
        for name in ("Length", "Repetition", "CopiedPrompt", "Contradiction")
    ],
    "templates": {"class_path": "vagentrl.claims.TemplatePenalty"},
    "audit": {
        "class_path": "vagentrl.claims.Audit",
        "init_args": {"judge": EXACT, "share": 0.25},
    },
}
ARMS: dict[str, dict[str, Any]] = {
    "undefended": {"judge": GULLIBLE, "skill": False},
    "defended": {"judge": GULLIBLE, **DEFENCES},
}
SMALL = ("--data.groups=2", "--data.val_episodes=4", "--trainer.check_val_every_n_epoch=1")
"""Settings of a dry run."""
SHOWN = {
    "observation_right": "observations all right",
    "prediction_right": "predictions all right",
    "success_rate": "success",
}


def callbacks(arm: str) -> str:
    """The setting for the configuration's callbacks.

    A second reward pays nothing: it lets the exact judge report on every arm.
    """
    pays = {
        **ARMS[arm],
        "observation_coefficient": 0.4,
        "prediction_coefficient": 0.15,
        "relative": True,
        "evaluations": False,
    }
    listed = [
        {"class_path": "vagentrl.callbacks.WorldModelReward", "init_args": pays},
        {"class_path": "scripts.gullible_judge.TrueScores", "init_args": {"judge": EXACT}},
    ]
    return f"--trainer.callbacks={json.dumps(listed)}"


def make_start(folder: Path) -> None:
    """Write the model from which all arms start, unless it is there."""
    if (folder / "config.json").is_file():
        return
    seed_everything(1)
    empty = ["--config", str(ROOT / CONFIG), "--data.env=scripts.gullible_judge.EmptySokoban"]
    cli = VagentCLI(empty, run=False)
    path = Path(checkpoint_path(cli.model.policy_name))
    policy = load_model(str(path))
    stage = Stage(noise=0.5, steps=200, lr=1e-3, claim_noise=0.6)
    demonstrations = Demonstrations(
        cli.datamodule.environments["train"],
        Demonstrator(stage.noise, ("Up", "Down", "Left", "Right"), stage.claim_noise),
        Renderer.from_pretrained(path),
        stage.batch_size,
        FullHistory(),
        context_length(load_config(str(path))),
        seed=1,
    )
    clone(policy, demonstrations, stage, "start")
    shutil.copytree(path, folder)
    policy.save_pretrained(folder)


def table(runs: dict[str, list[dict]]) -> str:
    lines = ["| held-out episodes | arm | before | after | each seed |", "|---|---|---|---|---|"]
    for name, title in SHOWN.items():
        for arm, summaries in runs.items():
            curves = [
                {int(e["iteration"]): e[f"val/{name}"] for e in run["evaluations"]}
                for run in summaries
            ]
            first, last = min(curves[0]), max(curves[0])
            cells = [title, arm]
            cells += [mean_and_spread([curve[step] for curve in curves]) for step in (first, last)]
            cells.append(", ".join(f"{curve[last]:.3f}" for curve in curves))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(folder: Path, figure_path: Path) -> None:
    figure, all_axes = pyplot.subplots(
        1, len(SHOWN), figsize=(4.6 * len(SHOWN), 4), layout="constrained"
    )
    for axes, (name, title) in zip(all_axes, SHOWN.items(), strict=True):
        for number, arm in enumerate(ARMS):
            curves = [
                scalars(run, f"rollout/{name}") for run in sorted((folder / arm).glob("seed_*"))
            ]
            means = [statistics.mean(values) for values in zip(*curves, strict=True)]
            axes.plot(means, color=f"C{number}", linewidth=2.2, label=arm)
        finish(axes, title=title, ylabel="share, in training (T = 1)", ylim=None)
    save(figure, figure_path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train under a judge that can be fooled.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--figure", type=Path, default=None)
    parser.add_argument("--dry_run", action="store_true", help="one small iteration of each arm")
    arguments = parser.parse_args()
    folder = ROOT / "runs/judge_attack"
    extra = [f"--trainer.max_epochs={arguments.iterations}"]
    if arguments.dry_run:
        arguments.seeds, folder = 1, ROOT / "runs/judge_attack_dry"
        extra = ["--trainer.max_epochs=1", *SMALL]
    start = folder / "start"
    make_start(start)
    extra.append(f"--model.policy={start}")
    wanted = [
        Run(folder / arm / f"seed_{seed}", CONFIG, seed, [callbacks(arm), *extra])
        for seed, arm in product(range(1, arguments.seeds + 1), ARMS)
    ]
    train(wanted, arguments.jobs)
    print(table({arm: load(str(folder / arm / "seed_*")) for arm in ARMS}))
    if arguments.figure is not None:
        draw(folder, arguments.figure)


if __name__ == "__main__":
    main()
