"""Drives runs into the echo trap, and tests whether EchoTrapMonitor warns of it, and of it alone.

    python scripts/study_echo_trap.py --jobs 2 --figure docs/figures/echo_trap.png

Trains two worlds, each in three ways and with several seeds, into `runs/echo_trap/WORLD/`; finished
runs are not repeated. `healthy` is the recipe. The others have no KL penalty, no group filter and
no entropy bonus. In `hot` the learning rate rises over the run to several times the recipe's; in
`template` it is low, and a bonus is paid for every reply that contains a certain text. Prints a
Markdown table: when the monitor warned, when held-out success was 20 points below its peak, the
lead of the warning in iterations, and the kind of trouble that showed first. The figure shows
held-out success with the warnings. Each run uses one thread. `--quick` tries it with tiny runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from compare_runs import draw, finish, load, save

matplotlib.use("Agg")
from matplotlib import pyplot
from study import ROOT, Run, scalars, train

from vagentrl.callbacks.echo_trap.signs import KINDS

ARMS = ("healthy", "hot", "template")
BELOW_PEAK = 0.2
"""Loss of held-out success, from its peak, that counts as a collapse."""


@dataclass(frozen=True)
class World:
    """A world to study.

    Attributes:
        recipe: Its recipe.
        iterations: Iterations of a run, by arm.
        hot_lr: Learning rate of the actor at the end of `hot`.
        template_lr: The rate in `template`.
        text: What a reply must contain to earn the bonus.
        bonus: What it earns.
    """

    recipe: str
    iterations: Mapping[str, int]
    hot_lr: float
    template_lr: float
    text: str
    bonus: float


WORLDS = {
    "arithmetic": World(
        "configs/arithmetic.yaml",
        {"healthy": 30, "hot": 40, "template": 30},
        hot_lr=1.32e-3,
        template_lr=5e-5,
        text="1",
        bonus=0.4,
    ),
    "search_qa": World(
        "configs/search_qa.yaml",
        {"healthy": 20, "hot": 40, "template": 40},
        hot_lr=3e-3,
        template_lr=5e-5,
        text="search",
        bonus=0.25,
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        warned: The iteration of the first alarm; None without one.
        first: The kind of trouble that had shown longest when it came; None without an alarm.
        peak: The highest held-out success.
        fell: The iteration after which held-out success was first `BELOW_PEAK` below the highest
            before; None if it never was.
    """

    warned: int | None
    first: str | None
    peak: float
    fell: int | None

    @property
    def lead(self) -> int | None:
        """By how many iterations the alarm preceded the fall."""
        return None if self.warned is None or self.fell is None else self.fell - self.warned


def outcome(
    held_out: Mapping[int, float], alarm: Sequence[float], shows: Mapping[str, Sequence[float]]
) -> Outcome:
    """Judge a run.

    Args:
        held_out: Held-out success by the number of completed iterations.
        alarm: For each iteration, 1 if there was an alarm, else 0.
        shows: For each kind of trouble and each iteration, 1 if it showed, else 0.
    """
    highest, fell = -1.0, None
    for iteration, success in sorted(held_out.items()):
        if fell is None and success <= highest - BELOW_PEAK + 1e-9:
            fell = iteration
        highest = max(highest, success)
    if not any(alarm):
        return Outcome(None, None, highest, fell)
    place = list(alarm).index(1)
    begins = {kind: _begin(values, place) for kind, values in shows.items() if values[place]}
    return Outcome(place + 1, min(begins, key=lambda kind: begins[kind]), highest, fell)


def _begin(values: Sequence[float], place: int) -> int:
    """Where the stretch of ones begins that reaches to a place."""
    while place > 0 and values[place - 1]:
        place -= 1
    return place


def settings(world: World, arm: str, quick: bool) -> list[str]:
    """Command-line arguments of a run."""
    iterations = 2 if quick else world.iterations[arm]
    wanted = [f"--trainer.max_epochs={iterations}", "--trainer.check_val_every_n_epoch=1"]
    if quick:
        wanted += ["--data.groups=2", "--data.group_size=2", "--data.val_episodes=4"]
    if arm == "healthy":
        return [*wanted, "--trainer.callbacks+=EchoTrapMonitor"]
    wanted += [
        "--trainer.callbacks=EchoTrapMonitor",  # instead of the recipe's KL control
        "--data.filter=KeepAll",
        "--model.entropy_coef=0",
        "--model.optimizer.final_lr_scale=1",
    ]
    if arm == "hot":
        return [
            *wanted,
            f"--model.optimizer.actor_lr={world.hot_lr}",
            f"--model.optimizer.warmup_iterations={iterations - 1}",
        ]
    return [
        *wanted,
        f"--model.optimizer.actor_lr={world.template_lr}",
        "--trainer.callbacks+=scripts.template_reward.TemplateReward",
        f"--trainer.callbacks.text={world.text}",
        f"--trainer.callbacks.bonus={world.bonus}",
    ]


def read(folder: Path) -> Outcome:
    """The outcome of a finished run."""
    (summary,) = load(str(folder))
    held_out = {int(e["iteration"]): e["val/success_rate"] for e in summary["evaluations"]}
    shows = {kind: scalars(folder, f"echo_trap/{kind}") for kind in KINDS}
    return outcome(held_out, scalars(folder, "echo_trap/alarm"), shows)


def table(outcomes: Mapping[tuple[str, str, int], Outcome]) -> str:
    """A row for each run, by world, arm and seed, and a sentence about each arm."""
    lines = [
        "| world | training | seed | warned | peak | 20 points below | lead | first sign |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for (world, arm, seed), run in outcomes.items():
        numbers = [run.warned, f"{run.peak:.2f}", run.fell, run.lead, run.first]
        cells = [world, arm, seed, *("–" if each is None else each for each in numbers)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for arm in ARMS:
        runs = [run for (_, name, _), run in outcomes.items() if name == arm]
        if not runs:
            continue
        fallen = [run for run in runs if run.fell is not None]
        early = [run for run in fallen if run.lead is not None and run.lead > 0]
        spared = [run for run in runs if run.fell is None]
        vain = sum(run.warned is not None for run in spared)
        lines += [
            "",
            f"{arm}: {len(fallen)} of {len(runs)} runs fell by 20 points, {len(early)} of them "
            f"after a warning; of the {len(spared)} others {vain} were warned of.",
        ]
    return "\n".join(lines)


def figure_of(folder: Path, outcomes: Mapping[tuple[str, str, int], Outcome], path: Path) -> None:
    """Draw held-out success of all runs, and mark where the monitor warned."""
    worlds = list(dict.fromkeys(world for world, _, _ in outcomes))
    figure, panels = pyplot.subplots(
        1, len(worlds), figsize=(6.5 * len(worlds), 4.2), layout="constrained", squeeze=False
    )
    for axes, world in zip(panels[0], worlds, strict=True):
        arms = list(dict.fromkeys(arm for name, arm, _ in outcomes if name == world))
        for number, arm in enumerate(arms):
            draw(axes, arm, load(str(folder / world / arm / "seed_*")), f"C{number}")
        for (name, arm, seed), run in outcomes.items():
            if name == world and run.warned is not None:
                (summary,) = load(str(folder / world / arm / f"seed_{seed}"))
                height = {e["iteration"]: e["val/success_rate"] for e in summary["evaluations"]}
                color = f"C{arms.index(arm)}"
                axes.plot(run.warned, height[run.warned], "v", color=color, markersize=9)
        finish(axes, title=f"{world} (▼: first warning)", ylabel="held-out success (T = 0.5)")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train into the echo trap, and beside it.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/echo_trap")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to try the study")
    parser.add_argument("--figure", type=Path, default=None)
    arguments = parser.parse_args()
    runs = {  # ordered by seed, so that unfinished studies already have every arm
        (world, arm, seed): Run(
            arguments.folder / world / arm / f"seed_{seed}",
            WORLDS[world].recipe,
            seed,
            settings(WORLDS[world], arm, arguments.quick),
        )
        for seed in range(1, arguments.seeds + 1)
        for world in arguments.worlds
        for arm in arguments.arms
    }
    train(list(runs.values()), arguments.jobs)
    outcomes = {key: read(runs[key].folder) for key in sorted(runs)}
    print(table(outcomes))
    if arguments.figure is not None:
        figure_of(arguments.folder, outcomes, arguments.figure)


if __name__ == "__main__":
    main()
