"""Evaluates a run at its start and its end."""

from __future__ import annotations

from lightning import Callback, LightningModule, Trainer

from vagentrl.modules.agent import agent_of


class EvaluateAtEnds(Callback):
    """Evaluates before the first update and after the last one.

    Lightning by itself evaluates only after every n-th iteration: never before the first update,
    and after the last one only if its number is a multiple of n. A resumed run is not evaluated
    again before its first update.
    """

    def __init__(self) -> None:
        self._evaluated: int | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluated = agent_of(pl_module).iteration

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if agent_of(pl_module).iteration == agent_of(pl_module).first_iteration:
            _evaluate(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._evaluated != agent_of(pl_module).iteration:
            _evaluate(trainer)


def _evaluate(trainer: Trainer) -> None:
    # These are the steps with which Lightning's loop evaluates between two training batches.
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
