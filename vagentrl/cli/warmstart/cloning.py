"""Behaviour cloning, stage by stage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from tqdm import tqdm

from vagentrl.cli.warmstart.demonstrator import Demonstrator, demonstrate, to_trajectory
from vagentrl.contexts import Context
from vagentrl.environment import Environment, seed_of
from vagentrl.errors import ConfigError
from vagentrl.modules.actor import ActorModule
from vagentrl.rollout.collate import collate
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import RolloutBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
}
"""Settings of a trainer that leaves no traces."""


@dataclass(frozen=True)
class Stage:
    """A part of the cloning, with an optimizer and a demonstrator of its own.

    A model learns to plan fastest from a demonstrator that rarely errs, and then takes over the
    errors of one that often does in few steps.

    Args:
        noise: Share of turns in which the demonstrator acts at random.
        steps: Number of optimizer steps.
        lr: Highest learning rate (one cycle).
        batch_size: Episodes in a step.
        obeys: How often the demonstrator does what a hint says, where the environment gives hints.
        turns: Number of turns shown of an episode, from the first; None for all. The turns of an
            episode are much alike, so many short demonstrations teach reading at the lowest cost.
        claim_noise: Share of the demonstrator's claims that are wrong by one random action.
        until: Repeat the stage until the success rate on training seeds is no higher than this.
            How fast a good planner takes over errors varies with the machine's rounding; with
            this limit the result does not.
    """

    noise: float
    steps: int
    lr: float = 2e-3
    batch_size: int = 16
    turns: int | None = None
    claim_noise: float = 0.0
    until: float | None = None
    obeys: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 4:
            raise ConfigError(f"steps is {self.steps}; a cycle of learning rates takes at least 4")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; a step takes at least 1 episode")


class Demonstrations(IterableDataset[RolloutBatch]):
    """Endless batches of fresh demonstrations; each worker of a data loader plays others."""

    def __init__(
        self,
        factory: Callable[[], Environment],
        demonstrator: Demonstrator,
        renderer: Renderer,
        batch_size: int,
        context: Context,
        context_length: int,
        seed: int,
        turns: int | None = None,
    ) -> None:
        self.factory = factory
        self.demonstrator = demonstrator
        self.renderer = renderer
        self.batch_size = batch_size
        self.context = context
        self.context_length = context_length
        self.seeds = np.random.default_rng(seed)  # a repeated stage draws new ones
        self.turns = turns

    def __iter__(self) -> Iterator[RolloutBatch]:
        worker = get_worker_info()
        # A worker has a copy of `self.seeds`; its own seed differs from the others' and, in a
        # repeated stage, from the last.
        seeds = self.seeds if worker is None else np.random.default_rng(worker.seed)
        # It is closed when the loader lets go of this generator.
        with closing(self.factory()) as environment:
            while True:
                batch = [
                    to_trajectory(
                        demonstrate(
                            environment, self.demonstrator, seed_of("train", int(seed)), self.turns
                        ),
                        self.renderer,
                        self.context,
                        self.context_length,
                    )
                    for seed in seeds.integers(2**60, size=self.batch_size)
                ]
                yield collate(batch, self.renderer, temperature=1.0)


class CloneModule(LightningModule):
    """Behaviour cloning: the mean negative log-prob of the demonstrated reply tokens."""

    def __init__(self, policy: PreTrainedModel, renderer: Renderer, lr: float, steps: int) -> None:
        super().__init__()
        self.actor = ActorModule(policy, renderer.banned_ids)
        self.lr = lr
        self.steps = steps

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> Tensor:
        loss = -self.actor(batch).sum() / batch.action_mask.sum()
        self.log("loss", loss.detach(), prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.lr, total_steps=self.steps, pct_start=max(0.05, 2 / self.steps)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def transfer_batch_to_device(
        self, batch: RolloutBatch, device: torch.device, dataloader_idx: int
    ) -> RolloutBatch:
        return batch.to(device)


class StepProgress(Callback):
    """Shows how many optimizer steps of a stage are done."""

    def __init__(self, steps: int, name: str) -> None:
        self._bar = tqdm(
            total=steps,
            desc=name,
            unit="step",
            file=sys.stderr,
            mininterval=0.1 if sys.stderr.isatty() else 30.0,
        )

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._bar.set_postfix(loss=f"{float(outputs['loss']):.3f}", refresh=False)
        self._bar.update(trainer.global_step - self._bar.n)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._bar.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._bar.close()


def clone(
    policy: PreTrainedModel,
    demonstrations: Demonstrations,
    stage: Stage,
    name: str = "clone",
    accelerator: str = "cpu",
    workers: int = 0,
) -> None:
    """Train the policy on fresh demonstrations for one stage.

    Args:
        policy: The model; it is changed.
        demonstrations: What to clone.
        stage: For how long, and how fast.
        name: What the progress bar calls it.
        accelerator: Lightning's name of what the model learns on.
        workers: Processes that play demonstrations ahead; 0 to play them in this one.
    """
    accumulate = stage.batch_size // demonstrations.batch_size
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=1,
        limit_train_batches=stage.steps * accumulate,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=1.0,
        enable_progress_bar=False,  # Lightning's counts forward passes
        callbacks=[StepProgress(stage.steps, name)],
        **QUIET,
    )
    module = CloneModule(policy, demonstrations.renderer, stage.lr, stage.steps)
    loader = DataLoader(
        demonstrations,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,  # a fork would copy held locks
        persistent_workers=workers > 0,  # Lightning advises it, although there is one epoch
    )
    trainer.fit(module, loader)
