"""Adjustments for DeepSpeed: `AgentModule` varies its gradient accumulation from iteration to
iteration, and in a critic warm-up its actor takes no step."""

from __future__ import annotations

from typing import Any

from lightning import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy

from vagentrl.errors import ConfigError
from vagentrl.modules.checkpoint_io import save_whole_folders
from vagentrl.modules.rollouts import rollouts_of


def prepare(trainer: Trainer, strategy: DeepSpeedStrategy) -> None:
    """Adjust DeepSpeed's settings, precision plugin and checkpoints before DeepSpeed starts.

    Raises:
        ConfigError: When the strategy is DeepSpeed's stage 3.
    """
    assert strategy.config is not None
    if strategy.zero_stage_3:
        raise ConfigError(
            "trainer.strategy is DeepSpeed's stage 3, whose ranks would wait for each other where "
            "only some of them have rows with images; set it to fsdp2, which shards the weights "
            "too, or to deepspeed_stage_2"
        )
    # DeepSpeed only logs this size. Without it Lightning would infer the size from the dataloader,
    # and so have episodes collected before there is a model.
    size = rollouts_of(trainer).micro_batch_size
    strategy.config.setdefault("train_micro_batch_size_per_gpu", size)
    # Lightning would convert the batch's tensors, old log-probs included, to bfloat16.
    trainer.precision_plugin.convert_input = _unchanged  # pyright: ignore
    save_whole_folders(strategy)


def engine_of(trainer: Trainer) -> Any | None:
    """DeepSpeed's engine if the strategy is DeepSpeed, else None."""
    strategy = trainer.strategy
    return strategy.deepspeed_engine if isinstance(strategy, DeepSpeedStrategy) else None


def rewind(optimizer: Any, name: str) -> None:
    """Reset the step counts of a parameter group to 0.

    DeepSpeed also counts a step for weights that had no gradient. Adam's bias correction would
    then be too weak in their first real steps.
    """
    for group in optimizer.param_groups:
        if group["name"] == name:
            for weights in group["params"]:
                optimizer.state[weights]["step"].zero_()


def _unchanged(batch: Any) -> Any:
    return batch
