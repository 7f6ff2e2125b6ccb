"""What an iteration needs of Lightning's trainer, whoever made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lightning import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, Timer
from lightning.pytorch.strategies import DeepSpeedStrategy

from vagentrl.errors import ConfigError


class Needed(NamedTuple):
    """What an iteration needs of a trainer's setting.

    Attributes:
        value: The one value that works.
        lightnings: Lightning's default, which a trainer has where nobody asked for anything.
        why: Why no other value works.
    """

    value: int | bool
    lightnings: int | bool
    why: str


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
    "barebones": Needed(False, False, "it switches off all logging: nothing of a run is known"),
}
"""Settings of a trainer that work with one value only, by name."""


def check_asked(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of a trainer that differ from what an iteration needs.

    Only where the arguments are known can a value that was asked for be told from Lightning's
    default; the trainer itself does not remember. `check_trainer` looks at trainers.
    """
    for name, needed in NEEDED.items():
        if arguments.get(name, needed.value) != needed.value:
            raise _wrong(name, arguments[name], needed)


def check_trainer(trainer: Trainer, stage: str) -> None:
    """Set what an iteration needs of the trainer, and refuse what would break one.

    One epoch is one iteration, so an epoch has to play its own episodes, and to learn from all of
    their minibatches before anything else happens. Lightning's defaults become what is needed;
    whoever made the trainer, it passes here.

    Raises:
        ConfigError: With the setting's name, its value and what to do.
    """
    for name, needed in NEEDED.items():
        holder: Any = trainer
        if name == "use_distributed_sampler":  # the trainer has no attribute of that name
            holder = trainer._accelerator_connector
        if getattr(holder, name) not in (needed.value, needed.lightnings):
            raise _wrong(name, getattr(holder, name), needed)
        setattr(holder, name, needed.value)
    _check_precision(trainer)
    if stage == "fit":
        for name, value, works, advice in _rules_of_fit(trainer):
            if not works:
                raise ConfigError(f"trainer.{name} is {value}, but {advice}")
        _check_callbacks(trainer)


def _wrong(name: str, value: object, needed: Needed) -> ConfigError:
    return ConfigError(
        f"trainer.{name} is {value}, but {needed.why}: leave it out, or set it to {needed.value}"
    )


_Rule = tuple[str, object, bool, str]
"""A setting's name and value, whether it works, and otherwise why not and what to do."""


def _check_precision(trainer: Trainer) -> None:
    """Refuse precisions that convert weights and batches as a whole, without DeepSpeed."""
    known = ("32-true", "bf16-mixed", "16-mixed")
    if trainer.precision not in known and not isinstance(trainer.strategy, DeepSpeedStrategy):
        raise ConfigError(
            f"trainer.precision is {trainer.precision}, which would convert the batches too, "
            f"log-probs and all; give one of {', '.join(known)}, and the type of the weights as "
            "model.dtype"
        )


def _rules_of_fit(trainer: Any) -> Iterator[_Rule]:
    """Rules for training; the limits that ``fast_dev_run`` sets are meant."""
    whole = "an iteration learns from all of its minibatches"
    at_the_end = "an evaluation within an iteration would score a policy that is half updated"
    quick = bool(trainer.fast_dev_run)
    epochs = trainer.max_epochs
    limit = trainer.limit_train_batches
    interval = trainer._val_check_time_interval or trainer.val_check_interval
    every = trainer.check_val_every_n_epoch
    yield (
        "overfit_batches",
        trainer.overfit_batches,
        trainer.overfit_batches == 0,
        f"{whole}, which are new every time; leave it out, and lower data.groups for a small run",
    )
    yield (
        "limit_train_batches",
        limit,
        quick or (isinstance(limit, float) and limit == 1),
        f"{whole}; leave it out, and set data.groups, group_size and passes for fewer of them",
    )
    yield (
        "max_steps",
        trainer.max_steps,
        quick or trainer.max_steps == -1,
        "a run ends with an iteration; leave it out, and set trainer.max_epochs (iterations)",
    )
    yield (
        "min_steps",
        trainer.min_steps,
        trainer.min_steps is None,
        "a run ends with an iteration; leave it out, and set trainer.min_epochs (iterations)",
    )
    yield (
        "max_epochs",
        epochs,
        epochs is not None and epochs >= 1,
        "a run has a number of iterations, from 1 on, for its schedules and its last evaluation "
        "(to evaluate alone there is `validate`); give that number",
    )
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
        f"{at_the_end}; give a number of iterations from 1 on (trainer.limit_val_batches: 0 "
        "evaluates nothing)",
    )
    yield (
        "accumulate_grad_batches",
        trainer.accumulate_grad_batches,
        trainer.accumulate_grad_batches == 1,
        "it follows from data.minibatch_size (rows in a step) and data.micro_batch_size (rows in "
        "a pass): set these, and leave it out",
    )
    yield (
        "gradient_clip_algorithm",
        "value",  # Lightning's other one is the norm
        trainer.gradient_clip_algorithm != "value",
        "gradients are clipped by their norm; leave it out",
    )


def _check_callbacks(trainer: Trainer) -> None:
    """Refuse Lightning's callbacks that would act within an iteration."""
    for callback in trainer.callbacks:  # pyright: ignore
        if isinstance(callback, GradientAccumulationScheduler):
            raise ConfigError(
                "GradientAccumulationScheduler is set, but the accumulation follows from "
                "data.minibatch_size and data.micro_batch_size: set these, and leave it out"
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
                "cannot go on from within an iteration; set every_n_epochs"
            )


@runtime_checkable
class IterationData(Protocol):
    """What `AgentModule` asks of its datamodule."""

    report: dict[str, float]

    def evaluate(self, environment: str, seeds: Sequence[int], agent: Any) -> dict[str, float]: ...


def check_data(trainer: Trainer) -> None:
    """Refuse to run without the datamodule that plays the episodes."""
    data: Any = trainer.datamodule  # pyright: ignore
    # the loop asks elsewhere where a dataloader was given, whatever an earlier call has left
    if data is None or trainer.fit_loop._data_source.instance is not data:
        raise _wrong_data("no datamodule")
    if not isinstance(data, IterationData):
        raise _wrong_data(f"a {type(data).__name__}")


def _wrong_data(given: str) -> ConfigError:
    return ConfigError(
        f"the trainer was given {given}, but an AgentModule learns from episodes that a "
        "RolloutDataModule plays; call trainer.fit(agent, RolloutDataModule(...)), or validate or "
        "test in its place"
    )
