import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import runs
from vagentrl.advantages import MaskedGAE
from vagentrl.callbacks import AgentCallback
from vagentrl.errors import ConfigError
from vagentrl.modules.agent import AdamW, AgentModule
from vagentrl.types import RolloutBatch, Scores

NO_EVALUATION = ("--trainer.limit_val_batches=0",)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"actor_lr": -1e-3}, r"model\.optimizer\.actor_lr is -0\.001; it must be a number of at"),
        ({"critic_lr": math.nan}, r"model\.optimizer\.critic_lr is nan"),
        ({"weight_decay": math.inf}, r"model\.optimizer\.weight_decay is inf"),
        ({"warmup_iterations": -1}, r"model\.optimizer\.warmup_iterations is -1"),
        ({"final_lr_scale": 1.5}, r"final_lr_scale is 1\.5; give a share of the rates from 0 to 1"),
        ({"betas": (0.9, 1.0)}, r"betas is \(0\.9, 1\.0\); give two numbers from 0 to below 1"),
        ({"eps": 0.0}, r"eps is 0\.0; give a small number above 0"),
    ],
)
def test_rates_that_cannot_work_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        AdamW(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"value_coef": -1.0}, r"model\.value_coef is -1\.0; it must be a number of at least 0"),
        ({"entropy_coef": -0.01}, r"model\.entropy_coef is -0\.01"),
        ({"value_clip": -0.5}, r"model\.value_clip is -0\.5; give a distance above 0, or null"),
        ({"value_clip": math.nan}, r"model\.value_clip is nan"),
        ({"score_batch_size": 0}, r"model\.score_batch_size is 0; it must be at least 1"),
    ],
)
def test_numbers_that_cannot_work_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        AgentModule("tiny-sokoban-text", MaskedGAE(), **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--trainer.accumulate_grad_batches=4"], "it follows from data.minibatch_size"),
        (["--trainer.gradient_clip_algorithm=value"], "gradients are clipped by their norm"),
        (
            ["--trainer.max_epochs=-1", "--model.optimizer.final_lr_scale=0.2"],
            "final_lr_scale is 0.2 and trainer.max_epochs -1",
        ),
        (
            [
                "--trainer.max_epochs=null",
                "--trainer.max_steps=8",
                "--model.optimizer.final_lr_scale=0.2",
            ],
            "final_lr_scale is 0.2 and trainer.max_epochs -1",
        ),
        (
            [
                "--trainer.callbacks=lightning.pytorch.callbacks.ModelCheckpoint",
                "--trainer.callbacks.every_n_train_steps=1",
            ],
            "set every_n_epochs",
        ),
    ],
    ids=["accumulate", "clip", "endless", "steps", "checkpoints"],
)
def test_what_the_trainer_would_not_do_is_refused(settings: list[str], said: str, run_dir: Path):
    with pytest.raises(ConfigError, match=said):
        runs.fit(*settings)


def test_a_trainer_that_has_fitted_can_fit_again(run_dir: Path):
    run = runs.fit(*NO_EVALUATION, "--trainer.max_epochs=1")
    run.trainer.fit_loop.max_epochs = 2
    run.trainer.fit(run.model, run.datamodule)
    assert run.model.iteration == 2


class OtherSampler(AgentCallback):
    """Makes rows look as if other policies had sampled them, each another one."""

    def on_scores(self, agent: AgentModule, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        rows = torch.arange(len(rollout.rewards))[:, None]
        self.seen = replace(rollout, rollout_logprobs=scores.old_logprobs - 0.1 * rows), scores
        return self.seen[0]


@pytest.mark.parametrize("micro_batch_size", [1, 4])
def test_the_effective_sample_size_is_that_of_the_whole_batch(micro_batch_size: int, run_dir: Path):
    run = runs.prepare(
        *NO_EVALUATION,
        "--trainer.max_epochs=1",
        f"--data.micro_batch_size={micro_batch_size}",
        "--model.policy_loss=vagentrl.losses.PPOClip",
        "--model.policy_loss.importance.level=row",
        "--model.policy_loss.importance.cap=100",
    )
    other = OtherSampler()
    runs.callbacks(run).append(other)
    run.trainer.fit(run.model, run.datamodule)
    rollout, scores = other.seen
    ratio = run.model.policy_loss.importance.ratio(rollout, scores)[rollout.action_mask]
    wanted = float(ratio.sum() ** 2 / (len(ratio) * ratio.square().sum()))
    assert wanted < 0.9
    [logged] = runs.events(run).Scalars("train/importance_sample_size")
    assert logged.value == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (["--data.minibatch_size=4"], False),
        (["--data.minibatch_size=2"], True),
        (["--data.minibatch_size=4", "--data.passes=2"], True),
        (["--data.minibatch_size=2", "--model.policy_loss=vagentrl.losses.PPOClip"], False),
    ],
)
def test_the_plain_policy_gradient_with_several_updates_is_warned_of(
    settings: list[str], warned: bool, run_dir: Path, caplog: pytest.LogCaptureFixture
):
    plain = "--model.policy_loss=vagentrl.losses.Reinforce"
    runs.fit(plain, *settings, *NO_EVALUATION, "--trainer.max_epochs=1")
    assert ("is right for one update a batch" in caplog.text) == warned
