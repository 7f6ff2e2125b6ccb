"""What a run achieved: a table, a learning curve, a file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGES = ("generate", "environment", "score", "update")


class RunSummary(Callback):
    """Writes ``summary.json`` and ``learning_curve.png`` to the run's folder when it ends."""

    def __init__(self) -> None:
        self._evaluations: list[dict[str, float]] = []
        self._iterations: list[dict[str, float]] = []
        self._started = time.perf_counter()
        self._seconds_before = 0.0

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._evaluations.append(_snapshot(trainer, pl_module.iteration, "val/"))  # pyright: ignore

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        iteration = pl_module.iteration + 1  # pyright: ignore
        self._iterations.append(_snapshot(trainer, iteration, "rollout/", "train/", "time/"))

    @rank_zero_only
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._iterations:
            return
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        summary = self._summary()
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        self._draw(folder / "learning_curve.png")
        rank_zero_info(_table(summary) + f"\nwritten to {folder}")

    def _summary(self) -> dict:
        summary: dict = {}
        if self._evaluations:
            for when, metrics in (("before", self._evaluations[0]), ("after", self._evaluations[-1])):
                summary[f"val_success_{when}"] = metrics.get("val/success_rate")
                summary[f"val_success_{when}_95"] = [
                    metrics.get("val/success_rate_low"),
                    metrics.get("val/success_rate_high"),
                ]
        seconds = {
            stage: sum(metrics.get(f"time/{stage}", 0.0) for metrics in self._iterations)
            for stage in STAGES
        }
        total = self._seconds_before + time.perf_counter() - self._started
        return summary | {
            "iterations": len(self._iterations),
            "episodes": int(sum(m["rollout/episodes"] for m in self._iterations)),
            "failed_episodes": round(
                sum(m["rollout/episodes"] * m["rollout/failed"] for m in self._iterations)
            ),
            "seconds": {name: round(value, 2) for name, value in seconds.items()}
            | {"total": round(total, 2)},
            "evaluations": self._evaluations,
        }

    def _draw(self, path: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
        _draw_success(left, self._evaluations, self._iterations)
        steps = [m["iteration"] for m in self._iterations]
        right.plot(steps, [m.get("rollout/return", float("nan")) for m in self._iterations])
        right.set(title="Return of training episodes", xlabel="iteration", ylabel="return")
        for axes in (left, right):
            axes.grid(alpha=0.3)
        figure.savefig(path, dpi=120)
        pyplot.close(figure)

    def state_dict(self) -> dict:
        return {
            "evaluations": self._evaluations,
            "iterations": self._iterations,
            "seconds": self._seconds_before + time.perf_counter() - self._started,
        }

    def load_state_dict(self, state_dict: dict) -> None:
        self._evaluations = state_dict["evaluations"]
        self._iterations = state_dict["iterations"]
        self._seconds_before = state_dict["seconds"]


def _snapshot(trainer: Trainer, iteration: int, *prefixes: str) -> dict[str, float]:
    metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(prefixes)}
    return {"iteration": float(iteration)} | metrics


def _draw_success(
    axes: Axes, evaluations: list[dict[str, float]], iterations: list[dict[str, float]]
) -> None:
    axes.plot(
        [m["iteration"] for m in iterations],
        [m.get("rollout/success_rate", float("nan")) for m in iterations],
        color="0.7",
        label="training episodes",
    )
    if evaluations:
        steps = [m["iteration"] for m in evaluations]
        axes.plot(steps, [m["val/success_rate"] for m in evaluations], "o-", label="held-out")
        axes.fill_between(
            steps,
            [m["val/success_rate_low"] for m in evaluations],
            [m["val/success_rate_high"] for m in evaluations],
            alpha=0.2,
            label="95 % interval",
        )
    axes.set(title="Success rate", xlabel="iteration", ylabel="success", ylim=(0, 1))
    axes.legend(loc="lower right")


def _table(summary: dict) -> str:
    lines = ["", "Run summary", "-----------"]
    for when in ("before", "after"):
        if (rate := summary.get(f"val_success_{when}")) is not None:
            low, high = summary[f"val_success_{when}_95"]
            lines.append(f"held-out success {when:<7} {rate:.3f}  (95 %: {low:.3f} to {high:.3f})")
    seconds = summary["seconds"]
    lines += [
        f"iterations              {summary['iterations']}",
        f"episodes                {summary['episodes']}  ({summary['failed_episodes']} failed)",
        f"seconds                 {seconds['total']:.0f}  ("
        + ", ".join(f"{stage} {seconds[stage]:.0f}" for stage in STAGES)
        + ")",
    ]
    return "\n".join(lines)
