"""Trainer settings that an iteration needs are set; others are refused by name."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, Timer

from tests import runs
from vagentrl.errors import ConfigError
from vagentrl.modules.trainer_checks import NEEDED, check_asked, check_trainer, computes_in

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def trainer(**settings: Any) -> Trainer:
    """A plain Lightning trainer, as in a notebook."""
    return Trainer(**QUIET | {"enable_checkpointing": False, "max_epochs": 2} | settings)


def values(trainer: Any) -> dict[str, Any]:
    names = NEEDED.keys() - {"use_distributed_sampler"}
    sampler = trainer._accelerator_connector.use_distributed_sampler
    return {name: getattr(trainer, name) for name in names} | {"use_distributed_sampler": sampler}


@pytest.mark.parametrize("stage", ["fit", "validate", "test"])
def test_lightnings_defaults_become_what_is_needed(stage: str):
    plain = trainer()
    assert values(plain) == {name: needed.default for name, needed in NEEDED.items()}
    check_trainer(plain, stage)
    assert values(plain) == {
        "reload_dataloaders_every_n_epochs": 1,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "barebones": False,
    }
    check_trainer(plain, stage)  # a trainer may be used again


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"reload_dataloaders_every_n_epochs": 2}, "reload_dataloaders_every_n_epochs is 2, but an it"),
    ({"num_sanity_val_steps": -1}, "num_sanity_val_steps is inf, but a sanity check would play"),
    ({"precision": "bf16-true"}, "precision is bf16-true, which would also round the log-probs"),
    ({"precision": "64-true"}, "precision is 64-true"),
    ({"overfit_batches": 2}, "overfit_batches is 2, but"),
    ({"limit_train_batches": 0}, "limit_train_batches is 0, but"),
    (
        {"limit_train_batches": 1},
        "limit_train_batches is 1, but",
    ),  # the integer 1 is one batch, 1.0 is all batches
    ({"limit_train_batches": 0.5}, "limit_train_batches is 0.5, but"),
    ({"max_steps": 8}, r"max_steps is 8, but .* set trainer.max_epochs"),
    ({"min_steps": 8}, r"min_steps is 8, but .* set trainer.min_epochs"),
    ({"max_epochs": -1}, "max_epochs is -1, but learning-rate schedules"),
    ({"max_epochs": 0}, "max_epochs is 0, but"),
    ({"val_check_interval": 0.5}, r"val_check_interval is 0.5, but .*check_val_every_n_epoch"),
    ({"val_check_interval": 1}, "val_check_interval is 1, but"),
    ({"val_check_interval": timedelta(minutes=1)}, "val_check_interval is 60.0, but"),
    ({"check_val_every_n_epoch": None}, "check_val_every_n_epoch is None, but an evaluation with"),
    ({"check_val_every_n_epoch": 0}, "check_val_every_n_epoch is 0, but"),
    ({"accumulate_grad_batches": 4}, r"accumulate_grad_batches is 4, but .* data.minibatch_size"),
    ({"gradient_clip_algorithm": "value"}, "gradient_clip_algorithm is value, but"),
    ({"max_time": "00:00:01:00"}, "max_time or a Timer is set, which would end the run within"),
    ({"callbacks": Timer("00:00:01:00")}, "max_time or a Timer is set"),
    ({"callbacks": GradientAccumulationScheduler({0: 2})}, "GradientAccumulationScheduler is set"),
    (
        {"callbacks": ModelCheckpoint(every_n_train_steps=1), "enable_checkpointing": True},
        "set every_n_epochs",
    ),
]


@pytest.mark.parametrize(
    ("settings", "said"), REFUSED, ids=map("-".join, (case for case, _ in REFUSED))
)
def test_what_would_break_an_iteration_is_refused_by_name(settings: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        check_trainer(trainer(**settings), "fit")


@pytest.mark.parametrize(
    "settings",
    [
        {"limit_train_batches": 1.0, "limit_val_batches": 0},
        {"fast_dev_run": 3},
        {"min_epochs": 2, "gradient_clip_val": 1.0, "gradient_clip_algorithm": "norm"},
        {"precision": "bf16-mixed", "check_val_every_n_epoch": 5},
        {"callbacks": Timer("00:00:01:00", interval="epoch")},
        {"callbacks": ModelCheckpoint(every_n_epochs=1), "enable_checkpointing": True},
    ],
    ids="-".join,
)
def test_what_leaves_iterations_whole_is_accepted(settings: dict[str, Any]):
    check_trainer(trainer(**settings), "fit")


def test_engines_are_told_of_the_type_of_mixed_precision_only():
    assert computes_in(trainer(precision="bf16-mixed")) == torch.bfloat16
    assert computes_in(trainer(precision="32-true")) is None


def test_an_evaluation_needs_no_number_of_iterations():
    check_trainer(trainer(max_epochs=-1), "validate")


def test_what_was_asked_for_is_refused_even_where_it_is_lightnings_default():
    with pytest.raises(ConfigError, match="reload_dataloaders_every_n_epochs is 0, but"):
        check_asked({"reload_dataloaders_every_n_epochs": 0})
    check_asked({"max_epochs": 3})


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("reload_dataloaders_every_n_epochs=0", "trainer.reload_dataloaders_every_n_epochs is 0"),
        ("num_sanity_val_steps=2", "trainer.num_sanity_val_steps is 2"),
        ("use_distributed_sampler=true", "trainer.use_distributed_sampler is True"),
        ("barebones=true", "trainer.barebones is True"),
        ("limit_train_batches=2", "trainer.limit_train_batches is 2"),
        ("max_epochs=-1", "trainer.max_epochs is -1"),
    ],
)
def test_the_command_line_refuses_the_same(setting: str, said: str, run_dir: Path):
    with pytest.raises(ConfigError, match=said):
        runs.fit(f"--trainer.{setting}")
