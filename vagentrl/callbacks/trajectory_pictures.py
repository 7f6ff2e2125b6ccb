"""Draws episodes as pictures for the loggers that show any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning import Callback, LightningModule, Trainer
from PIL import Image, ImageOps

from vagentrl.callbacks.media import writers_for
from vagentrl.modules.agent import agent_of
from vagentrl.modules.checks import check_least
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.rollout.exchange import with_pixels
from vagentrl.rollout.source import TRAIN
from vagentrl.types import IMAGE_PLACEHOLDER
from vagentrl.viewer.pictures import Panel, episode_picture, stacked, text_frame
from vagentrl.viewer.transcript import episode_title

if TYPE_CHECKING:
    from vagentrl.types import Observation, Trajectory, Turn

PANELS_PER_ROW = 6
MOST_PANELS = 48
FRAME_WIDTH = 224
"""Smaller frames are enlarged to at least this many pixels, so that the caption has room."""
MOST_WIDTH = 448
"""Larger frames are reduced to this many pixels."""


class TrajectoryPictures(Callback):
    """Draws a few episodes with their observations, replies and rewards.

    The pictures go to TensorBoard, Weights & Biases and MLflow; other loggers take none.

    Args:
        every_n_iterations: How often to draw training episodes. Episodes of an evaluation are
            always drawn.
        episodes: The number of episodes to draw each time.
    """

    def __init__(self, every_n_iterations: int = 10, episodes: int = 3) -> None:
        owner = "TrajectoryPictures"
        check_least(owner, 1, every_n_iterations=every_n_iterations, episodes=episodes)
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
        writers = writers_for(trainer.loggers) if trainer.is_global_zero else []
        played = [trajectory for trajectory in trajectories if trajectory.turns]
        drawn = with_pixels(played[: self.episodes], here=bool(writers))
        for number, trajectory in enumerate(drawn if writers else ()):
            picture = trajectory_picture(trajectory)
            for writer in writers:
                writer.image(f"{where}/episode_{number}", picture, iteration)


def trajectory_picture(trajectory: Trajectory) -> Image.Image:
    """Draw a panel for each turn and one for the end, under a title that identifies the episode.

    In a long episode the turns in the middle are left out.
    """
    first = trajectory.earlier_turns + 1
    panels = [
        Panel(_frame(turn.observation), f"turn {number}", caption(turn))
        for number, turn in enumerate(trajectory.turns, first)
    ]
    title = episode_title(trajectory)
    if trajectory.final_observation is not None:
        panels.append(Panel(_frame(trajectory.final_observation), trajectory.stop))
    if len(panels) > MOST_PANELS:
        half = MOST_PANELS // 2
        title += f", turns {first + half} to {first + len(panels) - half - 1} not drawn"
        panels = [*panels[:half], *panels[-half:]]
    return episode_picture(title, panels, PANELS_PER_ROW)


def _frame(observation: Observation) -> Image.Image:
    if observation.images:
        return stacked([_scaled(image) for image in observation.images])
    return text_frame(observation.text, FRAME_WIDTH, MOST_WIDTH)


def _scaled(image: Image.Image) -> Image.Image:
    """Enlarge an image by a whole factor to `FRAME_WIDTH` or more, or reduce it to `MOST_WIDTH`."""
    if image.width > MOST_WIDTH:
        return ImageOps.scale(image, MOST_WIDTH / image.width)
    return ImageOps.scale(image, max(1, -(-FRAME_WIDTH // image.width)), Image.Resampling.NEAREST)


def caption(turn: Turn) -> str:
    """The text of the observation if there are images too, the hint, the reply and the rewards."""
    beside = turn.observation.text.replace(IMAGE_PLACEHOLDER, "").strip()
    bonus = f", bonus {turn.bonus:+.2f}" if turn.bonus else ""
    lines = [
        beside if turn.observation.images else "",
        f"[hint] {turn.observation.hint}" if turn.observation.hint else "",
        turn.reply.text,
        f"[malformed] {turn.reply.problem}" if turn.reply.problem is not None else "",
        f"reward {turn.reward:+.2f}{bonus}",
        *(f"{kind} {score:.2f}" for kind, score in turn.scores.items()),
    ]
    return "\n".join(line for line in lines if line)
