"""One line that says where a run is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from vagentrl.callbacks.base import AgentCallback

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule
    from vagentrl.types import Trajectory

_SHOWN = {
    "held-out": "val/success_rate",
    "success": "rollout/success_rate",
    "return": "rollout/return",
    "tok/s": "rollout/tokens_per_s",
}


class IterationProgress(ProgressBar, AgentCallback):
    """A bar over iterations, with the stage of the current one and its headline numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: tqdm | None = None
        self._ended = 0
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        total = trainer.max_epochs if stage == "fit" else None
        self._bar = tqdm(
            total=total,
            desc=f"{stage}: loading",
            unit="it",
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=0.1 if sys.stderr.isatty() else 15.0,
            disable=not self._enabled or trainer.global_rank != 0,
            bar_format="{desc:<26} {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"
            if total
            else "{desc:<26} [{elapsed}]{postfix}",
        )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._bar is not None:
            self._bar.close()

    def print(self, *args: Any, **kwargs: Any) -> None:
        tqdm.write(" ".join(str(arg) for arg in args))

    def _stage(self, text: str) -> None:
        if self._bar is not None:
            self._bar.set_description_str(text, refresh=False)
            self._bar.update(0)  # draws, but not more often than mininterval

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._bar is not None:
            self._bar.n = pl_module.iteration  # pyright: ignore
            self._bar.refresh()

    def on_episode_end(self, agent: AgentModule, trajectory: Trajectory) -> None:
        self._ended += 1
        what = "evaluate" if agent.trainer.validating or agent.trainer.testing else "collect"
        self._stage(f"{what}: {self._ended} episodes")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = 0
        self._show(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = 0

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._stage(f"update: {batch_idx + 1}/{trainer.num_training_batches} batches")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._bar is not None:
            self._bar.update()
        self._show(trainer)

    def _show(self, trainer: Trainer) -> None:
        metrics = trainer.callback_metrics
        shown = {k: f"{float(metrics[n]):.4g}" for k, n in _SHOWN.items() if n in metrics}
        if self._bar is not None:
            self._bar.set_postfix(shown, refresh=False)
            self._bar.update(0)
