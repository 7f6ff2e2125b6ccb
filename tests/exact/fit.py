"""A whole run of Lightning over enumerated batches, with learning rates of 0."""

from __future__ import annotations

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from tests.exact import objectives
from tests.exact.cases import AGGREGATIONS, ESTIMATORS
from tests.exact.datamodule import EnumeratedData
from tests.exact.experiment import Experiment
from tests.exact.formulas import Mode
from tests.exact.models import TableAgent, in_float64
from tests.exact.trainer_path import Gradients, gradients
from tests.exact.world import LONG, SHORT, Batch, all_batches, probabilities, to_paths
from vagentrl.modules.optimizer import AdamW

CASE = ESTIMATORS["BiLevelGAE, default"]
MODE: Mode = "trajectory_mean"
WORLDS = (LONG, SHORT)
SETTINGS: dict[str, Any] = {"entropy_coef": 0.02, "value_coef": 0.5}


class SumOfGradients(Callback):
    """Adds up the gradients that the optimizer gets, times the probabilities of the batches."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.total: Gradients = {}

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        agent: Any = pl_module
        probability = self.batches[agent.iteration].probability
        for name, gradient in gradients(agent).items():
            before = self.total.get(name, torch.zeros_like(gradient))
            self.total[name] = before + probability * gradient


@in_float64()
def run(**settings: Any) -> Gradients:
    """The sum of the gradients of a run.

    Args:
        settings: Settings of the trainer.
    """
    batches = _batches(Experiment(CASE, **SETTINGS))
    agent = TableAgent(
        "exact",
        CASE.estimator,
        aggregation=AGGREGATIONS[MODE],
        optimizer=AdamW(actor_lr=0.0, critic_lr=0.0),
        **SETTINGS,
    )
    total = SumOfGradients(batches)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=len(batches),
        callbacks=[total],
        reload_dataloaders_every_n_epochs=1,
        use_distributed_sampler=False,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    data = EnumeratedData(WORLDS, batches, groups=2, minibatch_size=4, micro_batch_size=1)
    trainer.fit(agent, data)
    return total.total


@in_float64()
def documented() -> Gradients:
    """What the gradients of a run should add up to."""
    experiment = Experiment(CASE, **SETTINGS)
    paths = [to_paths(world) for world in WORLDS]
    values = experiment.old_values.tolist()
    tokens = objectives.lay_out(paths, _batches(experiment), CASE.formula, values, MODE)
    return objectives.gradients(experiment.documented_loss("PPOClip", tokens), experiment.agent)


def _batches(experiment: Experiment) -> list[Batch]:
    """Every fourth batch: the sum need not be an expectation."""
    chances = [probabilities(to_paths(world), experiment.old_logprobs).tolist() for world in WORLDS]
    return all_batches(chances, members=2)[::4]
