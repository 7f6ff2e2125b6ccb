"""Summarises a run: a table, a learning curve, a JSON file, and a log in lines of JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from vagentrl.callbacks.json_log import JSONLinesLogger
from vagentrl.modules.agent import agent_of
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.modules.run_folders import run_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGES = ("sync", "generate", "environment", "score", "update", "evaluate")

Metrics = dict[str, float]


class RunSummary(Callback):
    """Writes a run's ``log.jsonl``, and its ``summary.json`` and ``learning_curve.png`` at the end.

    All are in the run's folder. ``log.jsonl`` gets a line of JSON (`JSONLinesLogger`) whenever
    metrics are logged, so after every iteration and every evaluation, with any loggers or none. A
    run that is resumed in the same folder adds to the file. The summary of a resumed run includes
    the history from before the checkpoint.
    """

    def __init__(self) -> None:
        self._evaluations: list[Metrics] = []
        self._iterations: list[Metrics] = []
        self._started = time.perf_counter()
        self._seconds_before = 0.0
        self._log: JSONLinesLogger | None = None
        self._begins = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        path = run_folder(trainer) / "log.jsonl"
        if trainer.fast_dev_run:  # pyright: ignore
            return
        agent = agent_of(pl_module)
        self._begins = agent.iteration == agent.first_iteration
        # As a logger it gets exactly what was logged, and when. It is added only now: Lightning
        # takes the names of folders from the first logger.
        self._log = JSONLinesLogger(path, begins=lambda: self._begins)
        trainer.loggers.append(self._log)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._begins = False  # DeepSpeed and FSDP2 load it after `on_fit_start`

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._log is not None:
            trainer.loggers.remove(self._log)
        self._log = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
        wanted = {k: v for k, v in metrics.items() if k.startswith(("val/", "time/evaluate"))}
        self._evaluations.append(_record(agent_of(pl_module).iteration, wanted))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._update_started = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.is_last_batch:  # at the epoch's end a checkpoint may be saved already
            update = {"time/update": time.perf_counter() - self._update_started}
            report = rollouts_of(trainer).report
            self._iterations.append(_record(agent_of(pl_module).iteration + 1, report | update))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = run_folder(trainer)
        if not trainer.is_global_zero or not self._iterations or trainer.fast_dev_run:  # pyright: ignore
            return
        folder.mkdir(parents=True, exist_ok=True)
        summary = self.summary()
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        _draw(self._evaluations, self._iterations, folder / "learning_curve.png")
        rank_zero_info(f"{_table(summary)}\nwritten to {folder}")

    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``."""
        summary: dict[str, Any] = {}
        if self._evaluations:
            for when, metrics in (
                ("before", self._evaluations[0]),
                ("after", self._evaluations[-1]),
            ):
                summary[f"val_success_{when}"] = metrics["val/success_rate"]
                summary[f"val_success_{when}_95"] = [
                    metrics["val/success_rate_low"],
                    metrics["val/success_rate_high"],
                ]
        # Later rounds of a critic warm-up collect no episodes of their own.
        collected = [m for m in self._iterations if "rollout/episodes" in m]
        failed = sum(m["rollout/episodes"] * m["rollout/failed"] for m in collected)
        return summary | {
            "iterations": len(self._iterations),
            "episodes": round(sum(m["rollout/episodes"] for m in collected)),
            "failed_episodes": round(failed),
            "seconds": self._seconds(),
            "evaluations": self._evaluations,
        }

    def _seconds(self) -> Metrics:
        stages = {
            stage: sum(
                metrics.get(f"time/{stage}", 0.0)
                for metrics in (self._evaluations if stage == "evaluate" else self._iterations)
            )
            for stage in STAGES
        }
        return {name: round(s, 2) for name, s in (stages | {"total": self._elapsed()}).items()}

    def _elapsed(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        return {
            "evaluations": self._evaluations,
            "iterations": self._iterations,
            "seconds": self._elapsed(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._evaluations = state_dict["evaluations"]
        self._iterations = state_dict["iterations"]
        self._seconds_before = state_dict["seconds"]


def _record(iteration: int, metrics: Metrics) -> Metrics:
    return {"iteration": iteration} | {name: round(value, 6) for name, value in metrics.items()}


def _draw(evaluations: list[Metrics], iterations: list[Metrics], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_success(left, evaluations, iterations)
    right.plot(*_curve(iterations, "rollout/return"), ".-", color="tab:green")
    right.set(title="Return of training episodes", ylabel="return")
    for axes in (left, right):
        axes.set_xlabel("iteration")
        axes.set_xlim(0, iterations[-1]["iteration"])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_success(axes: Axes, evaluations: list[Metrics], iterations: list[Metrics]) -> None:
    axes.plot(*_curve(iterations, "rollout/success_rate"), ".-", color="0.75", label="training")
    title = "Success rate"
    if evaluations:
        steps, rates = _curve(evaluations, "val/success_rate")
        _, low = _curve(evaluations, "val/success_rate_low")
        _, high = _curve(evaluations, "val/success_rate_high")
        axes.fill_between(
            steps, low, high, color="tab:blue", alpha=0.15, linewidth=0, label="95 % interval"
        )
        axes.plot(steps, rates, "o-", color="tab:blue", label="held-out", clip_on=False)
        title += f": {rates[0]:.2f} before, {rates[-1]:.2f} after"
    axes.set(title=title, ylabel="share of episodes solved", ylim=(0, 1))
    axes.legend(loc="best", frameon=False)


def _curve(records: list[Metrics], name: str) -> tuple[list[float], list[float]]:
    known = [m for m in records if name in m]
    return [m["iteration"] for m in known], [m[name] for m in known]


def _table(summary: dict[str, Any]) -> str:
    lines = ["", "Run summary", "-----------"]
    for when in ("before", "after"):
        if (rate := summary.get(f"val_success_{when}")) is not None:
            low, high = summary[f"val_success_{when}_95"]
            lines.append(f"held-out success {when:<7} {rate:.3f}  (95 %: {low:.3f} to {high:.3f})")
    seconds = summary["seconds"]
    stages = ", ".join(f"{s} {seconds[s]:.0f}" for s in STAGES if seconds[s] >= 0.5)
    return "\n".join(
        [
            *lines,
            f"iterations              {summary['iterations']}",
            f"episodes                {summary['episodes']}  ({summary['failed_episodes']} failed)",
            f"seconds                 {seconds['total']:.0f}  ({stages})",
        ]
    )
