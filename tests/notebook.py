"""The toy run made in Python, as in a notebook."""

from functools import partial
from typing import Any

from lightning import Trainer

from tests import runs, toy
from vagentrl import AgentModule, RolloutDataModule, Sampling
from vagentrl.advantages import GroupRelative
from vagentrl.modules.optimizer import AdamW

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def agent(images: bool = False, **settings: Any) -> AgentModule:
    """A module that learns without a critic."""
    given = {"advantage": GroupRelative(), "optimizer": AdamW(actor_lr=1e-3)} | settings
    return AgentModule(**{"policy": runs.checkpoint(images)} | given)


def data(images: bool = False, **settings: Any) -> RolloutDataModule:
    """Four episodes of two turns in an iteration and in an evaluation."""
    few = {"groups": 2, "group_size": 2, "minibatch_size": 2, "micro_batch_size": 1}
    given = few | {"sampling": Sampling(max_tokens=4), "val_episodes": 4} | settings
    return RolloutDataModule(**{"env": partial(toy.Countdown, images, 2)} | given)


def trainer(**settings: Any) -> Trainer:
    """Lightning's own trainer."""
    return Trainer(**QUIET | settings)
