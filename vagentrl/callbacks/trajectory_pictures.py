"""Episodes as pictures in TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image, ImageOps

from vagentrl.errors import ConfigError
from vagentrl.modules.agent import agent_of
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.rollout.source import TRAIN
from vagentrl.viewer.pictures import episode_strip, text_frame

if TYPE_CHECKING:
    from vagentrl.types import Observation, Trajectory, Turn

FRAMES_PER_ROW = 6
FRAME_WIDTH = 224
"""Pixels that a frame is enlarged to at least, so that its caption has room."""


class TrajectoryPictures(Callback):
    """Draws a few episodes: what the agent saw, said and earned.

    Args:
        every_n_iterations: How often to draw episodes of training; those of evaluations are drawn
            whenever there are any.
        episodes: How many.
    """

    def __init__(self, every_n_iterations: int = 10, episodes: int = 3) -> None:
        for name, value in (("every_n_iterations", every_n_iterations), ("episodes", episodes)):
            if value < 1:
                raise ConfigError(f"TrajectoryPictures.{name} is {value}; give 1 or more")
        self.every_n_iterations = every_n_iterations
        self.episodes = episodes

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        iteration = agent_of(pl_module).iteration
        if iteration % self.every_n_iterations == 0:
            self._draw(trainer, iteration, "rollout", rollouts_of(trainer).trajectories)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw_evaluated(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw_evaluated(trainer, pl_module, "test")

    def _draw_evaluated(self, trainer: Trainer, pl_module: LightningModule, prefix: str) -> None:
        iteration = agent_of(pl_module).iteration
        for name, trajectories in rollouts_of(trainer).evaluated.items():
            where = prefix if name == TRAIN else f"{prefix}/{name}"
            self._draw(trainer, iteration, where, trajectories)

    def _draw(
        self, trainer: Trainer, iteration: int, where: str, trajectories: Sequence[Trajectory]
    ) -> None:
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        played = [trajectory for trajectory in trajectories if trajectory.turns]
        for number, trajectory in enumerate(played[: self.episodes] if boards else ()):
            picture = np.asarray(trajectory_picture(trajectory))
            for board in boards:
                tag = f"{where}/episode_{number}"
                board.experiment.add_image(tag, picture, iteration, dataformats="HWC")


def trajectory_picture(trajectory: Trajectory) -> Image.Image:
    """A frame per turn with the reply and the reward under it, and how the episode ended."""
    frames = [_frame(turn.observation) for turn in trajectory.turns]
    captions = [_caption(turn) for turn in trajectory.turns]
    if trajectory.final_observation is not None:
        frames.append(_frame(trajectory.final_observation))
        captions.append(f"{trajectory.stop}\nreturn {trajectory.total_reward:+.2f}")
    starts = range(0, len(frames), FRAMES_PER_ROW)
    rows = [slice(start, start + FRAMES_PER_ROW) for start in starts]
    return _stacked([episode_strip(frames[row], captions[row]) for row in rows])


def _stacked(strips: Sequence[Image.Image]) -> Image.Image:
    width, height = max(s.width for s in strips), sum(s.height for s in strips)
    picture = Image.new("RGB", (width, height), "white")
    top = 0
    for strip in strips:
        picture.paste(strip, (0, top))
        top += strip.height
    return picture


def _frame(observation: Observation) -> Image.Image:
    if not observation.images:
        text = text_frame(observation.text)
        size = (max(text.width, FRAME_WIDTH), text.height)
        return ImageOps.pad(text, size, color="white", centering=(0, 0))
    image = observation.images[-1]
    return ImageOps.scale(image, max(1, -(-FRAME_WIDTH // image.width)), Image.Resampling.NEAREST)


def _caption(turn: Turn) -> str:
    bonus = f" {turn.bonus:+.2f}" if turn.bonus else ""
    lines = [turn.reply.text, f"reward {turn.reward:+.2f}{bonus}"]
    lines += [f"{kind} {score:.2f}" for kind, score in turn.scores.items()]
    if turn.reply.problem is not None:
        lines.insert(1, f"[{turn.reply.problem}]")
    if turn.observation.hint:
        lines.insert(0, f"[told: {turn.observation.hint}]")
    return "\n".join(lines)
