import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from tests import runs
from vagentrl.advantages import MaskedGAE
from vagentrl.callbacks import AgentCallback
from vagentrl.errors import ConfigError, VagentError
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.gradients import SKIPPED_AT_MOST
from vagentrl.modules.optimizer import AdamW
from vagentrl.types import RolloutBatch, Scores, TrainBatch

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


def test_both_rates_fall_linearly_to_their_share_in_the_last_iteration():
    optimizer = AdamW(actor_lr=1.0, critic_lr=2.0, final_lr_scale=0.2)
    rates = [optimizer.rates(iteration, critic_only=0, iterations=5) for iteration in range(5)]
    # 0.8 in 4 steps of 0.2
    assert [rate["actor"] for rate in rates] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert [rate["critic"] for rate in rates] == pytest.approx([2.0, 1.6, 1.2, 0.8, 0.4])
    assert optimizer.rates(7, critic_only=0, iterations=5)["actor"] == pytest.approx(0.2)
    assert optimizer.rates(0, critic_only=0, iterations=1)["actor"] == 1.0  # the first of one


def test_the_actors_rate_rises_once_it_learns():
    optimizer = AdamW(actor_lr=1.0, critic_lr=2.0, warmup_iterations=1)
    rates = [optimizer.rates(iteration, critic_only=2, iterations=5) for iteration in range(5)]
    assert [rate["actor"] for rate in rates] == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert [rate["critic"] for rate in rates] == [2.0] * 5


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_half_precision_without_a_full_copy_is_warned_of(
    dtype: str, run_dir: Path, caplog: pytest.LogCaptureFixture
):
    runs.fit(*NO_EVALUATION, "--trainer.max_epochs=1", f"--model.dtype={dtype}")
    assert ("the trained weights are bfloat16" in caplog.text) == (dtype == "bfloat16")


class Poison(Callback):
    """Sets gradients to NaN in the given optimizer steps."""

    def __init__(self, steps: range) -> None:
        self.steps = steps
        self.actors: list[str] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.actors.append(runs.fingerprint(pl_module.actor))  # pyright: ignore

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step in self.steps:
            gradients = (p.grad for p in pl_module.parameters() if p.grad is not None)
            next(gradients).view(-1)[0] = torch.nan

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_start(trainer, pl_module)


def poisoned(steps: range, iterations: int) -> tuple[Any, Poison]:
    """A run with two steps per iteration, and the callback that sets its gradients to NaN."""
    run = runs.prepare(*NO_EVALUATION, f"--trainer.max_epochs={iterations}")
    poison = Poison(steps)
    runs.callbacks(run).append(poison)
    return run, poison


def test_a_gradient_that_is_not_finite_moves_nothing_and_the_run_goes_on(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    run, poison = poisoned(range(2, 4), iterations=3)  # all of the second iteration
    run.trainer.fit(run.model, run.datamodule)
    first, second, third = poison.actors[1:]
    assert poison.actors[0] != first == second != third
    assert all(p.isfinite().all() for p in run.model.parameters())
    events = runs.events(run)
    assert [event.value for event in events.Scalars("optim/skipped_steps")] == [0, 2, 0]
    assert len(events.Scalars("optim/actor_grad_norm")) == 2
    assert (
        "iteration 1: a step is skipped because its gradient is not finite (actor_grad_norm nan"
        in caplog.text
    )


def test_a_run_that_takes_no_step_any_more_ends(run_dir: Path):
    run, _ = poisoned(range(2, 100), iterations=20)
    with pytest.raises(VagentError, match=f"{SKIPPED_AT_MOST} steps in a row"):
        run.trainer.fit(run.model, run.datamodule)
    assert run.trainer.global_step < 2 + SKIPPED_AT_MOST + 1
    saved = torch.load(runs.folder(run) / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(w.isfinite().all() for w in saved["state_dict"].values())


class Spoil(Callback):
    """Sets a weight to infinity, as a diverged step would."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with torch.no_grad():
            next(p for p in pl_module.parameters() if p.requires_grad).view(-1)[0] = torch.inf


def test_weights_that_are_not_finite_are_not_saved(run_dir: Path):
    run = runs.prepare(*NO_EVALUATION)
    runs.callbacks(run).append(Spoil())
    with pytest.raises(VagentError, match=r"1 of the trained tensors are no longer finite"):
        run.trainer.fit(run.model, run.datamodule)
    assert not list(run_dir.rglob("*.ckpt"))


class OtherSampler(AgentCallback):
    """Changes the log-probs of each row as if another policy had sampled it; stores the batches."""

    def __init__(self) -> None:
        self.parts: list[TrainBatch] = []

    def policy_loss_term(self, agent: AgentModule, batch: TrainBatch, logprobs: Tensor) -> None:
        self.parts.append(batch)

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


def test_what_a_mask_leaves_out_weighs_nothing_in_the_loss_and_is_counted(run_dir: Path):
    run = runs.prepare(
        *NO_EVALUATION,
        "--trainer.max_epochs=1",
        "--model.policy_loss=vagentrl.losses.PPOClip",
        "--model.policy_loss.importance=TruncatedImportance",
        "--model.policy_loss.importance.masks=[{level: token, high: 1.15}]",
    )
    other = OtherSampler()
    runs.callbacks(run).append(other)
    run.trainer.fit(run.model, run.datamodule)
    # tokens of row r have the ratio exp(0.1 r): rows 0 and 1 are kept (1 and 1.105), 2 and 3 not
    tokens = other.seen[0].action_mask.sum(1)
    share = float(tokens[2:].sum() / tokens.sum())
    [logged] = runs.events(run).Scalars("train/importance_masked")
    assert logged.value == pytest.approx(share)
    weights = torch.zeros(4)
    for part in other.parts:
        mask, importance = part.rollout.action_mask, part.scores.importance
        assert importance is not None
        for row, sampled, weight in zip(
            part.rollout.trajectory_ids.tolist(), mask, importance, strict=True
        ):
            assert len(weight[sampled].unique()) == 1
            weights[row] = weight[sampled][0]
    torch.testing.assert_close(weights, torch.tensor([1.0, math.exp(0.1), 0.0, 0.0]))


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
    assert ("is right for one update per batch" in caplog.text) == warned
