"""Adjustments for DeepSpeed: `AgentModule` varies its gradient accumulation from iteration to
iteration, and in a critic warm-up its actor takes no step."""

from __future__ import annotations

from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, Strategy

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
            "trainer.strategy is DeepSpeed's stage 3, which wants all ranks to call the same "
            "modules in the same order, and an agent's do not (docs/scaling.md); set it to fsdp2, "
            "which shards the weights too, or to deepspeed_stage_2"
        )
    # DeepSpeed only logs this size. Without it Lightning would infer the size from the dataloader,
    # and so have episodes collected before there is a model.
    size = rollouts_of(trainer).micro_batch_size or 1
    strategy.config.setdefault("train_micro_batch_size_per_gpu", size)
    # Lightning would convert the batch's tensors, old log-probs included, to bfloat16.
    trainer.precision_plugin.convert_input = _unchanged  # pyright: ignore
    save_whole_folders(strategy)


def engine_of(trainer: Trainer) -> Any | None:
    """DeepSpeed's engine if the strategy is DeepSpeed, else None."""
    strategy = trainer.strategy
    return strategy.deepspeed_engine if isinstance(strategy, DeepSpeedStrategy) else None


def offloads(strategy: Strategy) -> bool:
    """Whether DeepSpeed keeps the optimizer's states in main memory, and wants its own AdamW.

    With ``zero_force_ds_cpu_optimizer: false`` in DeepSpeed's settings it takes torch's.
    """
    if not isinstance(strategy, DeepSpeedStrategy):
        return False
    assert strategy.config is not None
    target = strategy.config.get("zero_optimization", {}).get("offload_optimizer") or {}
    forced = strategy.config.get("zero_force_ds_cpu_optimizer", True)
    return forced and target.get("device") in ("cpu", "nvme")


def cpu_adam(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    """DeepSpeed's AdamW for states in main memory; the first one on a machine compiles it.

    Args:
        groups: The parameter groups.
        **settings: The other settings of AdamW.

    Raises:
        ConfigError: When it cannot be compiled.
    """
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam  # pyright: ignore[reportMissingImports]

        return DeepSpeedCPUAdam(groups, adamw_mode=True, **settings)
    except Exception as error:  # whatever the compiler and torch's loader raise
        raise ConfigError(
            "trainer.strategy offloads the optimizer, and DeepSpeed's AdamW for that cannot be "
            f"compiled here: {error}. Install a C++ compiler and ninja (`ds_report` tells what is "
            "missing), step with torch's by zero_force_ds_cpu_optimizer: false in a `config` of "
            "the strategy, or choose deepspeed_stage_2"
        ) from error


def rewind(optimizer: Any, name: str) -> None:
    """Reset the step counts of a parameter group to 0.

    DeepSpeed also counts a step for weights that had no gradient. Adam's bias correction would
    then be too weak in their first real steps.
    """
    for group in optimizer.param_groups:
        if group["name"] == name:
            for weights in group["params"]:
                optimizer.state[weights]["step"] *= 0  # a tensor, or a number


def _unchanged(batch: Any) -> Any:
    return batch
