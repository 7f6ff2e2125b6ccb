"""What DeepSpeed wants of a module whose passes in a step vary, and whose actor may rest."""

from __future__ import annotations

from typing import Any

from lightning import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy

from vagentrl.errors import ConfigError
from vagentrl.modules.rollouts import rollouts_of


def prepare(trainer: Trainer, strategy: DeepSpeedStrategy) -> None:
    """Set what must be set before DeepSpeed starts.

    Raises:
        ConfigError: When it is its stage 3.
    """
    assert strategy.config is not None
    if strategy.zero_stage_3:
        raise ConfigError(
            "trainer.strategy is DeepSpeed's stage 3, which takes weights apart while they are "
            "made, and models cannot be loaded like that yet; take deepspeed_stage_2"
        )
    # for its log; else Lightning would have episodes collected before there is a model
    size = rollouts_of(trainer).micro_batch_size
    strategy.config.setdefault("train_micro_batch_size_per_gpu", size)
    # Lightning's would round old log-probs to bfloat16
    trainer.precision_plugin.convert_input = _as_it_is  # pyright: ignore


def engine_of(trainer: Trainer) -> Any | None:
    """DeepSpeed's engine, where it takes the steps."""
    strategy = trainer.strategy
    return strategy.deepspeed_engine if isinstance(strategy, DeepSpeedStrategy) else None


def rewind(optimizer: Any, name: str) -> None:
    """Undo that DeepSpeed counted a step of a group which had no gradient.

    A later step would be corrected for the bias of moments that are older than they are.
    """
    for group in optimizer.param_groups:
        if group["name"] == name:
            for weights in group["params"]:
                optimizer.state[weights]["step"].zero_()


def _as_it_is(batch: Any) -> Any:
    return batch
