"""Episodes as pictures in TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from vagentrl.viewer.pictures import episode_strip, text_frame

if TYPE_CHECKING:
    from PIL.Image import Image

    from vagentrl.types import Observation, Trajectory, Turn


class TrajectoryPictures(Callback):
    """Draws a few of an iteration's episodes: what the agent saw, said and earned.

    Args:
        every_n_iterations: How often.
        episodes: How many.
    """

    def __init__(self, every_n_iterations: int = 10, episodes: int = 3) -> None:
        self.every_n_iterations = every_n_iterations
        self.episodes = episodes

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        iteration = pl_module.iteration  # pyright: ignore
        if iteration % self.every_n_iterations == 0:
            self._draw(trainer, iteration, "rollout")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module.iteration, "val")  # pyright: ignore

    def _draw(self, trainer: Trainer, iteration: int, where: str) -> None:
        if not isinstance(trainer.logger, TensorBoardLogger):
            return
        played = [t for t in trainer.datamodule.trajectories if t.turns]  # pyright: ignore
        for number, trajectory in enumerate(played[: self.episodes]):
            trainer.logger.experiment.add_image(
                f"{where}/episode_{number}",
                np.asarray(trajectory_strip(trajectory)),
                iteration,
                dataformats="HWC",
            )


def trajectory_strip(trajectory: Trajectory) -> Image:
    """One picture of a trajectory: a frame per turn, with the reply and the reward under it."""
    frames = [_frame(turn.observation) for turn in trajectory.turns]
    captions = [_caption(turn) for turn in trajectory.turns]
    if trajectory.final_observation is not None:
        frames.append(_frame(trajectory.final_observation))
        captions.append(f"{trajectory.stop}, return {trajectory.total_reward:+.2f}")
    return episode_strip(frames, captions)


def _frame(observation: Observation) -> Image:
    return observation.images[-1] if observation.images else text_frame(observation.text)


def _caption(turn: Turn) -> str:
    problem = f" [{turn.reply.problem}]" if turn.reply.problem else ""
    return f"{turn.reply.text}{problem}  {turn.reward:+.2f}"
