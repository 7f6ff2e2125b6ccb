"""Know where a run starts from."""

from __future__ import annotations

from lightning import Callback, LightningModule, Trainer


class EvaluateAtStart(Callback):
    """Evaluates before the first update; Lightning alone would after it. Not when resuming."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pl_module.iteration > 0:  # pyright: ignore
            return
        # what the loop itself does between two training batches
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True
