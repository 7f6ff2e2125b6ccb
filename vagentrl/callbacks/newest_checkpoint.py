"""Saves checkpoints by the clock."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from vagentrl.errors import ConfigError
from vagentrl.modules.agent import agent_of
from vagentrl.modules.background_write import in_background
from vagentrl.modules.checkpoint_io import writing_of


class NewestCheckpoint(ModelCheckpoint):
    """Keeps the newest state of a run as ``last.ckpt``, saved every few minutes or iterations.

    A checkpoint is saved at the end of an iteration, since a run cannot be resumed from within:
    when ``minutes`` have passed since the last one or the iteration's number is a multiple of
    ``iterations``, whichever comes first, and after the last iteration. A `ModelCheckpoint` that
    keeps the best ones can stand beside it.

    Args:
        minutes: Minutes after which the next iteration's end is saved, by rank 0's clock; None for
            no such limit.
        iterations: Save after every so many iterations; None for no such limit.
        dirpath: The folder; None: ``checkpoints`` in the run's folder.
        background: Write in a thread while training goes on. Training then waits for a copy of the
            state in main memory, and for the write before if that has not ended. A failed write
            ends the run after the iteration. With DeepSpeed training waits in any case.
    """

    def __init__(
        self,
        minutes: float | None = 15.0,
        iterations: int | None = None,
        dirpath: str | Path | None = None,
        background: bool = False,
    ) -> None:
        if minutes is None and iterations is None:
            raise ConfigError(
                "NewestCheckpoint has neither minutes nor iterations; give one of them, or both"
            )
        if minutes is not None and not minutes >= 0:
            raise ConfigError(f"NewestCheckpoint.minutes is {minutes}; give a number of at least 0")
        if iterations is not None and iterations < 1:
            raise ConfigError(f"NewestCheckpoint.iterations is {iterations}; it must be at least 1")
        super().__init__(
            dirpath,
            filename=self.CHECKPOINT_NAME_LAST,
            every_n_epochs=1,
            save_on_train_epoch_end=True,
            enable_version_counter=False,  # the earlier one is replaced, also by a resumed run
        )
        self.minutes = minutes
        self.iterations = iterations
        self.background = background
        self._saved_at = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._saved_at = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        writing = writing_of(trainer.strategy)
        if writing is not None:
            writing.raise_if_failed()
        if trainer.strategy.broadcast(self._is_due(trainer, agent_of(pl_module).iteration)):
            with in_background() if self.background else nullcontext():
                super().on_train_epoch_end(trainer, pl_module)
            self._saved_at = time.monotonic()

    def _is_due(self, trainer: Trainer, iteration: int) -> bool:
        """Whether to save after this number of completed iterations."""
        passed = time.monotonic() - self._saved_at
        return (
            (self.minutes is not None and passed >= 60 * self.minutes)
            or (self.iterations is not None and iteration % self.iterations == 0)
            or trainer.should_stop
            or trainer.current_epoch + 1 == trainer.max_epochs
        )
