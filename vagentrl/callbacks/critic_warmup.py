"""Trains the critic alone before the actor starts to learn from its values."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule, Trainer

from vagentrl.errors import ConfigError
from vagentrl.modules.agent import AgentModule, agent_of
from vagentrl.modules.callback import AgentCallback
from vagentrl.rollout.iteration import Warmup

if TYPE_CHECKING:
    from torch import Tensor

    from vagentrl.types import TrainBatch

log = logging.getLogger(__name__)


class CriticWarmup(AgentCallback):
    """Trains only the critic in the first iterations, while the actor stays unchanged (Verlog).

    Each of these iterations is one round. The episodes are collected once, for all rounds. In every
    round the critic scores them again, the estimator computes new returns from these values, and
    the critic learns from a random part of the rows.

    Args:
        rounds: Maximum number of rounds (Verlog's ``w_iter``).
        batches: Number of batches to collect (``w_epoch``; 40 in Verlog, with 5 rounds on a tenth
            of the rows each).
        part: Share of the rows that each round learns from.
        tolerance: End the warm-up early once the value loss stalls. A round stalls if its loss is
            not lower, by at least this share, than the lowest loss before it. None always runs all
            rounds.
        patience: The number of consecutive stalled rounds that ends the warm-up.
    """

    def __init__(
        self,
        rounds: int = 1,
        batches: int = 1,
        part: float = 1.0,
        tolerance: float | None = None,
        patience: int = 2,
    ) -> None:
        counts = {"rounds": rounds, "batches": batches, "patience": patience}
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(
                    f"CriticWarmup.{name} is {count}; give 1 or more, or leave the callback out"
                )
        if not 0 < part <= 1:
            raise ConfigError(f"CriticWarmup.part is {part}; give a share above 0, up to 1")
        if tolerance is not None and tolerance < 0:
            raise ConfigError(f"CriticWarmup.tolerance is {tolerance}; give 0 or more, or null")
        self.rounds = rounds
        self.batches = batches
        self.part = part
        self.tolerance = tolerance
        self.patience = patience
        self._lowest = math.inf  # lowest value loss of a round so far
        self._stalled = 0  # consecutive stalled rounds

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        advantage = agent_of(pl_module).advantage
        if not advantage.needs_critic:
            raise ConfigError(
                f"CriticWarmup is set but model.advantage ({type(advantage).__name__}) "
                "uses no critic; leave the callback out or choose an estimator with a critic"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent_of(pl_module).warmup = Warmup(self.rounds, self.batches, self.part)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._losses: list[Tensor] = []

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: TrainBatch | None,
        batch_idx: int,
    ) -> None:
        agent = agent_of(pl_module)
        if agent.current.actor_learns or batch is None:
            return
        self._losses.append(outputs["loss"])  # in a warm-up this is the value loss alone
        if trainer.is_last_batch:  # at the epoch's end a checkpoint may be saved already
            loss = torch.stack(self._losses).mean() * trainer.accumulate_grad_batches
            self._compare(float(trainer.strategy.reduce(loss, reduce_op="mean")), agent)

    def _compare(self, loss: float, agent: AgentModule) -> None:
        """End the warm-up after this round if the value loss has stalled for `patience` rounds."""
        done = agent.iteration + 1
        if self.tolerance is None or done >= agent.warmup.rounds:
            return
        stalls = loss > self._lowest * (1 - self.tolerance)  # always False in the first round
        self._stalled = self._stalled + 1 if stalls else 0
        if self._stalled == self.patience:
            log.info(
                "the critic warm-up ends after %d rounds: value loss %.4g, lowest before %.4g",
                done,
                loss,
                self._lowest,
            )
            self.rounds = done
            agent.warmup = replace(agent.warmup, rounds=done)
        self._lowest = min(loss, self._lowest)

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "lowest": self._lowest, "stalled": self._stalled}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._lowest, self._stalled = state_dict["lowest"], state_dict["stalled"]
        if state_dict["rounds"] < self.rounds:  # the warm-up ended early
            self.rounds = state_dict["rounds"]
