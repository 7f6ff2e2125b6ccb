"""Finds out early that a callback waits for a number that is never logged."""

from __future__ import annotations

import difflib

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from vagentrl.errors import ConfigError


class CheckMonitors(Callback):
    """Refuses a ``monitor`` of ModelCheckpoint or EarlyStopping that is not among the metrics.

    Those of evaluations (``val/…``) are known after the evaluation before the first update, all
    others after the first iteration.
    """

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._check(trainer, of_evaluations=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check(trainer, of_evaluations=False)

    def _check(self, trainer: Trainer, *, of_evaluations: bool) -> None:
        known = {"step", "epoch", *trainer.callback_metrics}
        for callback in trainer.callbacks:  # pyright: ignore
            if not isinstance(callback, ModelCheckpoint | EarlyStopping):
                continue
            name = callback.monitor
            if name is None or name in known or name.startswith("val/") != of_evaluations:
                continue
            close = difflib.get_close_matches(name, known, n=1)
            guess = f" (did you mean {close[0]}?)" if close else ""
            raise ConfigError(
                f"{type(callback).__name__}.monitor is {name!r}, which is not logged{guess}; there "
                f"are {', '.join(sorted(known))}"
            )
