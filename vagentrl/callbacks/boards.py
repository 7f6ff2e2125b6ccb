"""What TensorBoard and other loggers show of a run beside its scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from vagentrl.callbacks.board_layout import layout
from vagentrl.callbacks.hyperparameters import hyperparameters
from vagentrl.callbacks.media import MediaWriter, writers_for
from vagentrl.callbacks.value_picture import value_picture
from vagentrl.losses import explained_variance
from vagentrl.modules.agent import AgentModule, agent_of
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.checks import check_least
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.rollout.source import TRAIN
from vagentrl.viewer.transcript import transcript

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vagentrl.types import TrainBatch, Trajectory

SUCCESS = "val/success_rate"
LAST, BEST = "hparams/success_rate", "hparams/best_success_rate"


class Boards(AgentCallback):
    """Arranges a run's scalars in boards, and shows what scalars cannot.

    TensorBoard's tab *Custom Scalars* gets the boards Learning, Echo trap, Optimisation, Rollout,
    Engine agreement and Time. Its tab *HParams* compares runs by their settings and their held-out
    success: of the last evaluation, and the best of all. Every few iterations there are histograms
    of the advantages, of the probability ratios to the policy before the update, and of the
    critic's values and its returns; a picture of values against returns; and some episodes as text,
    with hints, claims and verdicts. Evaluations give episodes as text, too. Weights & Biases and
    MLflow get all of this but the boards, as far as they take it. Every run has this callback, with
    the defaults below. Only rank 0 writes, and the ratios are those of its own rows.

    Args:
        every_n_iterations: How often to write histograms, values against returns, and training
            episodes, from the first iteration on.
        episodes: The number of episodes to write as text each time; 0 for none.
        most_tokens: Maximum number of tokens in a histogram; of more, an evenly spaced part counts.
    """

    def __init__(
        self, every_n_iterations: int = 10, episodes: int = 3, most_tokens: int = 20_000
    ) -> None:
        check_least("Boards", 1, every_n_iterations=every_n_iterations, most_tokens=most_tokens)
        check_least("Boards", 0, episodes=episodes)
        self.every_n_iterations = every_n_iterations
        self.episodes = episodes
        self.most_tokens = most_tokens
        self._best: float | None = None
        self._compared = False  # whether this trainer's loggers have the settings and the success
        self._ratios: list[Tensor] | None = None  # None in iterations without histograms

    # ------------------------------------------------------------------------ once in a run

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._compared, self._ratios = False, None
        settings = hyperparameters(agent_of(pl_module))
        for logger in trainer.loggers if trainer.is_global_zero else ():
            logger.log_hyperparams(settings)
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_custom_scalars(layout())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent = agent_of(pl_module)
        success = trainer.callback_metrics.get(SUCCESS)  # on all ranks: it may have to be summed
        if trainer.state.fn == "fit" and success is not None:
            self._compare(trainer, agent, float(success))
        if trainer.is_global_zero:
            self._write_evaluated(trainer, agent, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._write_evaluated(trainer, agent_of(pl_module), "test")

    def _compare(self, trainer: Trainer, agent: AgentModule, last: float) -> None:
        """Give the loggers the last and the best success, and TensorBoard the settings with them.

        TensorBoard lists a run beside others once it has both, so they are written with the first
        evaluation; a run that is killed later is listed, too.
        """
        self._best = last if self._best is None else max(self._best, last)
        metrics = {LAST: last, BEST: self._best}
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if isinstance(logger, TensorBoardLogger) and not self._compared:
                logger.log_hyperparams(hyperparameters(agent), metrics, agent.iteration)
            else:
                logger.log_metrics(metrics, agent.iteration)
        self._compared = True

    # ------------------------------------------------------------------- every few iterations

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent = agent_of(pl_module)
        due = trainer.is_global_zero and agent.iteration % self.every_n_iterations == 0
        writers = writers_for(trainer.loggers) if due else []
        self._ratios = [] if writers else None
        if not writers:
            return
        step = agent.iteration + 1  # as in the scalars of this iteration
        _write_texts(writers, "rollout", rollouts_of(trainer).trajectories[: self.episodes], step)
        loader = trainer.train_dataloader
        if isinstance(loader, MinibatchLoader):  # a filter may have kept no groups
            self._write_credit(writers, loader.whole, step)

    def _write_credit(self, writers: Sequence[MediaWriter], batch: TrainBatch, step: int) -> None:
        mask = batch.rollout.action_mask
        values, returns = batch.scores.values, batch.credit.returns
        self._write_histogram(writers, "histograms/advantages", batch.credit.advantages[mask], step)
        if values is None or returns is None:
            return
        self._write_histogram(writers, "histograms/values", values[mask], step)
        self._write_histogram(writers, "histograms/returns", returns[mask], step)
        picture = value_picture(
            self._part(values[mask]),
            self._part(returns[mask]),
            explained_variance(values, returns, mask),
        )
        for writer in writers:
            writer.image("histograms/values_against_returns", picture, step)

    def policy_loss_term(self, agent: AgentModule, batch: TrainBatch, logprobs: Tensor) -> None:
        if self._ratios is not None:
            log_ratio = (logprobs.detach() - batch.scores.old_logprobs)[batch.rollout.action_mask]
            self._ratios.append(log_ratio)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._ratios:
            ratios = torch.cat(self._ratios).float().exp()
            step = agent_of(pl_module).iteration
            self._write_histogram(writers_for(trainer.loggers), "histograms/ratios", ratios, step)
        self._ratios = None

    def _write_histogram(
        self, writers: Sequence[MediaWriter], name: str, values: Tensor, step: int
    ) -> None:
        part = self._part(values)
        part = part[np.isfinite(part)]
        for writer in writers if len(part) else ():
            writer.histogram(name, part, step)

    def _part(self, values: Tensor) -> np.ndarray:
        """At most `most_tokens` of the values ``(N,)``, evenly spaced."""
        stride = -(-len(values) // self.most_tokens) or 1
        return values[::stride].detach().float().cpu().numpy()

    # ------------------------------------------------------------------------------- episodes

    def _write_evaluated(self, trainer: Trainer, agent: AgentModule, prefix: str) -> None:
        writers = writers_for(trainer.loggers)
        for name, trajectories in rollouts_of(trainer).evaluated.items() if writers else ():
            where = prefix if name == TRAIN else f"{prefix}/{name}"
            _write_texts(writers, where, trajectories[: self.episodes], agent.iteration)

    # --------------------------------------------------------------------------------- resume

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._best = state_dict["best"]


def _write_texts(
    writers: Sequence[MediaWriter], where: str, trajectories: Sequence[Trajectory], step: int
) -> None:
    for number, trajectory in enumerate(trajectories):
        text = transcript(trajectory)
        for writer in writers:
            writer.text(f"{where}/transcript_{number}", text, step)
