"""Checks of the Lightning trainer's settings, whether the command line or a script made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, Timer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from vagentrl.errors import ConfigError
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.fsdp2 import FSDP2
from vagentrl.modules.rollouts import rollouts_of, wrong_data
from vagentrl.signatures import check_signatures


class Needed(NamedTuple):
    """The value that a trainer setting must have.

    Attributes:
        value: The only value that works.
        default: Lightning's own default, which is replaced silently.
        why: Why no other value works.
    """

    value: int | bool
    default: int | bool
    why: str


MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Values of ``trainer.precision`` that compute in another type than the weights have."""

NEEDED = {
    "reload_dataloaders_every_n_epochs": Needed(
        1, 0, "an iteration's episodes are played when its dataloader is made"
    ),
    "num_sanity_val_steps": Needed(
        0, 2, "a sanity check would play all held-out episodes for nothing"
    ),
    "use_distributed_sampler": Needed(
        False, True, "every rank takes its share of each evaluation's episodes by itself"
    ),
    "barebones": Needed(False, False, "it switches off all logging, on which a run depends"),
}
"""Trainer settings that work with one value only, by name."""


def check_asked(arguments: Mapping[str, Any]) -> None:
    """Refuse trainer arguments that differ from what an iteration needs.

    Unlike `check_trainer`, this also refuses an explicit argument that equals Lightning's default:
    a finished trainer no longer shows which arguments it was given.
    """
    for name, needed in NEEDED.items():
        if arguments.get(name, needed.value) != needed.value:
            raise _wrong(name, arguments[name], needed)


def check_trainer(trainer: Trainer, stage: str) -> None:
    """Set what an iteration needs of the trainer, and refuse settings that would break it.

    One epoch is one iteration: it plays its own episodes and learns from all of their minibatches
    before anything else happens. Settings that still have Lightning's default are changed to the
    value in `NEEDED`; others that differ from it are refused.

    Raises:
        ConfigError: When a setting does not work.
    """
    for name, needed in NEEDED.items():
        holder: Any = trainer
        if name == "use_distributed_sampler":  # kept in the connector, not in the trainer
            holder = trainer._accelerator_connector
        if getattr(holder, name) not in (needed.value, needed.default):
            raise _wrong(name, getattr(holder, name), needed)
        setattr(holder, name, needed.value)
    _check_strategy(trainer)
    _check_precision(trainer)
    for callback in trainer.callbacks:  # pyright: ignore
        if isinstance(callback, AgentCallback):
            check_signatures(callback)
    if stage == "fit":
        for name, value, works, advice in _fit_rules(trainer):
            if not works:
                raise ConfigError(f"trainer.{name} is {value}, but {advice}")
        _check_callbacks(trainer)


def _wrong(name: str, value: object, needed: Needed) -> ConfigError:
    return ConfigError(
        f"trainer.{name} is {value}, but {needed.why}: leave it out, or set it to {needed.value}"
    )


_Rule = tuple[str, object, bool, str]
"""A setting's name, its value, whether that value works, and the advice if it does not."""


def computes_in(trainer: Trainer) -> torch.dtype | None:
    """The type in which the trainer computes; None if that is the type of the weights."""
    return MIXED.get(str(trainer.precision))


def _check_precision(trainer: Trainer) -> None:
    """Refuse precisions that convert whole batches; with DeepSpeed that conversion is off."""
    known = ("32-true", "bf16-mixed", "16-mixed")
    if trainer.precision not in known and not isinstance(trainer.strategy, DeepSpeedStrategy):
        raise ConfigError(
            f"trainer.precision is {trainer.precision}, which would also round the log-probs in "
            f"the batches; give one of {', '.join(known)}, and set the type of the weights with "
            "model.dtype"
        )


def _check_strategy(trainer: Trainer) -> None:
    """Refuse the strategies that would shard the models in another way than `FSDP2` does."""
    strategy = trainer.strategy
    if isinstance(strategy, FSDPStrategy) or (
        isinstance(strategy, ModelParallelStrategy) and not isinstance(strategy, FSDP2)
    ):
        raise ConfigError(
            f"trainer.strategy is Lightning's {type(strategy).__name__}, which does not know how "
            "to shard an agent's models; set it to fsdp2"
        )
    if isinstance(strategy, FSDP2) and trainer.precision == "16-mixed":
        raise ConfigError(
            "trainer.precision is 16-mixed and trainer.strategy FSDP2, whose ranks would each "
            "scale the loss by themselves; set precision to bf16-mixed"
        )


def _fit_rules(trainer: Any) -> Iterator[_Rule]:
    """Rules for training. The limits that ``fast_dev_run`` sets are allowed."""
    yield from _iteration_rules(trainer)
    yield from _length_rules(trainer)
    yield from _evaluation_rules(trainer)


def _iteration_rules(trainer: Any) -> Iterator[_Rule]:
    whole = "an iteration learns from all of its minibatches"
    quick, limit = bool(trainer.fast_dev_run), trainer.limit_train_batches
    yield (
        "overfit_batches",
        trainer.overfit_batches,
        trainer.overfit_batches == 0,
        f"{whole}, and its episodes are new every time; leave it out, and lower data.groups for "
        "a small run",
    )
    yield (
        "limit_train_batches",
        limit,
        quick or (isinstance(limit, float) and limit == 1),
        f"{whole}; leave it out, and lower data.groups, group_size or passes for fewer of them",
    )
    yield (
        "accumulate_grad_batches",
        trainer.accumulate_grad_batches,
        trainer.accumulate_grad_batches == 1,
        "it follows from data.minibatch_size (rows in a step) and data.micro_batch_size or "
        "micro_batch_tokens (rows or tokens in a pass): set these, and leave it out",
    )
    yield (
        "gradient_clip_algorithm",
        "value",  # the only other algorithm is "norm"
        trainer.gradient_clip_algorithm != "value",
        "gradients are clipped by their norm; leave it out",
    )


def _length_rules(trainer: Any) -> Iterator[_Rule]:
    quick, epochs = bool(trainer.fast_dev_run), trainer.fit_loop.max_epochs
    yield (
        "max_steps",
        trainer.max_steps,
        quick or trainer.max_steps == -1,
        "a run ends after a whole iteration; leave it out, and set trainer.max_epochs (iterations)",
    )
    yield (
        "min_steps",
        trainer.min_steps,
        trainer.min_steps is None,
        "a run ends after a whole iteration; leave it out, and set trainer.min_epochs (iterations)",
    )
    yield (
        "max_epochs",
        trainer.max_epochs,
        epochs is not None and epochs >= 1,
        "learning-rate schedules and the last evaluation need the number of iterations; give a "
        "number of at least 1 (to evaluate without training, use `validate`)",
    )


def _evaluation_rules(trainer: Any) -> Iterator[_Rule]:
    at_the_end = "an evaluation within an iteration would score a half-updated policy"
    interval = trainer._val_check_time_interval or trainer.val_check_interval
    every = trainer.check_val_every_n_epoch
    yield (
        "val_check_interval",
        interval,
        isinstance(interval, float) and interval == 1 and trainer._val_check_time_interval is None,
        f"{at_the_end}; leave it out, and set trainer.check_val_every_n_epoch (iterations)",
    )
    yield (
        "check_val_every_n_epoch",
        every,
        every is not None and every >= 1,
        f"{at_the_end}; give a number of iterations of at least 1 (to switch evaluation off, set "
        "trainer.limit_val_batches to 0)",
    )


def _check_callbacks(trainer: Trainer) -> None:
    """Refuse Lightning callbacks that would act in the middle of an iteration."""
    for callback in trainer.callbacks:  # pyright: ignore
        if isinstance(callback, GradientAccumulationScheduler):
            raise ConfigError(
                "GradientAccumulationScheduler is set, but the accumulation follows from "
                "data.minibatch_size and data.micro_batch_size or micro_batch_tokens: set these, "
                "and leave it out"
            )
        if isinstance(callback, Timer) and callback._interval == "step":
            raise ConfigError(
                "trainer.max_time or a Timer is set, which would end the run within an iteration; "
                "leave max_time out, and give lightning.pytorch.callbacks.Timer with interval "
                "'epoch' (an iteration)"
            )
        if isinstance(callback, ModelCheckpoint) and (
            callback._every_n_train_steps or callback._train_time_interval is not None
        ):
            raise ConfigError(
                "ModelCheckpoint.every_n_train_steps or train_time_interval is set, but a run "
                "cannot be resumed from within an iteration; set every_n_epochs, or take "
                "vagentrl.callbacks.NewestCheckpoint, which has minutes and iterations"
            )


def check_data(trainer: Trainer) -> None:
    """Refuse to run without the datamodule that plays the episodes.

    Raises:
        ConfigError: When the trainer was given a dataloader, or a datamodule of another class.
    """
    data = rollouts_of(trainer)
    # trainer.datamodule may be left over from an earlier call; a dataloader given now wins over it.
    if trainer.fit_loop._data_source.instance is not data:
        raise wrong_data("no datamodule")
