from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from tests import runs
from vagentrl.advantages import MaskedGAE
from vagentrl.callbacks import CriticWarmup
from vagentrl.errors import ConfigError
from vagentrl.modules.agent import AgentModule
from vagentrl.rollout.iteration import Warmup


class Watch(Callback):
    """Copies the models' weights before training and after each iteration."""

    def __init__(self) -> None:
        self.actors: list[str] = []
        self.critics: list[str] = []

    def note(self, trainer: Trainer, agent: Any) -> None:
        self.actors.append(runs.fingerprint(agent.actor))
        self.critics.append(runs.fingerprint(agent.critic))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.note(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.note(trainer, pl_module)


@pytest.mark.parametrize("critic", ["own", "shared"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_actor_is_bit_identical_until_the_warmup_is_over_and_then_learns(
    critic: str, decay: float, run_dir: Any
):
    run = runs.prepare(
        f"--model.critic={critic}",
        f"--model.optimizer.weight_decay={decay}",
        "--trainer.callbacks+=vagentrl.callbacks.CriticWarmup",
        "--trainer.callbacks.rounds=2",
        "--trainer.max_epochs=3",
        "--trainer.limit_val_batches=0",
    )
    watch = Watch()
    runs.callbacks(run).append(watch)
    run.trainer.fit(run.model, run.datamodule)
    before, first, second, third = watch.actors
    assert before == first == second != third
    assert len(set(watch.critics)) == 4


def warmed(*settings: str) -> Any:
    return runs.fit(
        "--trainer.callbacks+=vagentrl.callbacks.CriticWarmup",
        *(f"--trainer.callbacks.{setting}" for setting in settings),
        "--trainer.max_epochs=4",
        "--trainer.limit_val_batches=0",
    )


def scalars(run: Any, name: str) -> list[float]:
    return [event.value for event in runs.events(run).Scalars(name)]


def test_all_rounds_learn_from_the_same_episodes(run_dir: Any):
    run = warmed("rounds=3", "batches=2", "part=0.25")
    # 2 batches of 2 x 2 episodes for the warm-up, then one of 4
    assert scalars(run, "rollout/episodes") == [8, 4]
    assert runs.summary(run)["episodes"] == 12
    # a quarter of 8 rows is one minibatch, an iteration of 4 rows has two
    assert run.trainer.global_step == 3 + 2
    assert run.datamodule._warmup is None  # the batch is released


def test_a_warmup_ends_when_the_loss_no_longer_falls(run_dir: Any):
    run = warmed(
        "rounds=3", "tolerance=1.0", "patience=1"
    )  # to go on, the loss would have to fall below 0
    assert run.model.warmup.rounds == 2
    assert scalars(run, "rollout/episodes") == [4, 4, 4]
    assert len(scalars(run, "train/policy_loss")) == 2


class Rounds:
    """A stand-in for the trainer: rounds of a warm-up with one batch each."""

    is_last_batch = True
    accumulate_grad_batches = 1

    def __init__(self) -> None:
        self.strategy = self

    def reduce(self, loss: Tensor, reduce_op: str) -> Tensor:
        return loss


def rounds_taken(losses: list[float], warmup: CriticWarmup, killed_after: int = 99) -> int:
    """The number of rounds that a warm-up runs with these value losses."""
    trainer: Any = Rounds()
    batch: Any = object()
    agent = AgentModule("no model is built", MaskedGAE())
    agent.warmup = Warmup(len(losses))
    while agent.iteration < min(agent.warmup.rounds, killed_after):
        warmup.on_train_epoch_start(trainer, agent)
        loss = {"loss": torch.tensor(losses[agent.iteration])}
        warmup.on_train_batch_end(trainer, agent, loss, batch=batch, batch_idx=0)
        agent.iteration += 1
    return agent.iteration


@pytest.mark.parametrize(
    ("losses", "taken"),
    [
        ([8.0, 4.0, 2.0, 1.0, 0.5, 0.25], 6),
        # a single stalled round (5, then 3) does not end it: the loss goes on falling
        ([8.0, 4.0, 5.0, 3.0, 2.0, 1.0], 6),
        # neither 3.9 nor 3.8 is a tenth below 4, the lowest until then
        ([8.0, 4.0, 3.9, 3.8, 1.0, 0.5], 4),
        # 3.5 is a tenth below 4, so the count starts again
        ([8.0, 4.0, 4.1, 3.5, 3.6, 3.6], 6),
        ([8.0, 9.0, 10.0, 1.0, 0.5, 0.1], 3),
    ],
)
def test_two_rounds_in_a_row_must_stall(losses: list[float], taken: int):
    assert rounds_taken(losses, CriticWarmup(len(losses), tolerance=0.1)) == taken


def test_patience_is_a_setting():
    losses = [8.0, 8.0, 8.0, 8.0, 8.0]
    for patience in (1, 2, 3):
        assert rounds_taken(losses, CriticWarmup(5, tolerance=0.1, patience=patience)) == (
            patience + 1
        )
    assert rounds_taken(losses, CriticWarmup(5)) == 5  # no tolerance: all rounds


def test_a_resumed_warmup_remembers_the_round_that_stalled():
    first, second = (CriticWarmup(9, tolerance=0.1) for _ in range(2))
    rounds_taken([8.0] * 9, first, killed_after=2)  # the second stalls
    second.load_state_dict(first.state_dict())
    assert rounds_taken([8.0] + [1.0] * 8, second) == 1  # two in a row


WITHIN_THE_EPOCH = (  # Lightning then saves after the evaluation
    "--trainer.check_val_every_n_epoch=1",
    "--trainer.callbacks=lightning.pytorch.callbacks.ModelCheckpoint",
    "--trainer.callbacks.save_last=true",
    "--trainer.callbacks.save_on_train_epoch_end=false",
)


@pytest.mark.parametrize("half", [1, 2, 3])
@pytest.mark.parametrize(
    "saving",
    [("--trainer.limit_val_batches=0",), WITHIN_THE_EPOCH],
    ids=["after-the-epoch", "within-the-epoch"],
)
def test_a_warmup_that_is_resumed_is_the_warmup_that_would_have_been(
    half: int, saving: tuple[str, ...], run_dir: Any
):
    settings = (
        *saving,
        "--trainer.callbacks+=vagentrl.callbacks.CriticWarmup",
        "--trainer.callbacks.rounds=3",
        "--trainer.callbacks.tolerance=1.0",
        "--trainer.callbacks.patience=1",
    )
    whole = runs.fit(*settings, "--trainer.max_epochs=4")
    first = runs.fit(*settings, f"--trainer.max_epochs={half}")
    path = str(runs.folder(first) / "checkpoints" / "last.ckpt")
    second = runs.fit(*settings, "--trainer.max_epochs=4", "--ckpt_path", path)
    assert runs.fingerprint(second.model) == runs.fingerprint(whole.model)


def test_a_round_in_which_nothing_is_kept_is_passed_over(run_dir: Any):
    none = ("--data.filter=DynamicSampling", "--data.filter.min_std=1000", "--data.filter.rounds=1")
    run = runs.fit(
        "--trainer.callbacks+=vagentrl.callbacks.CriticWarmup",
        "--trainer.callbacks.rounds=2",
        "--trainer.callbacks.tolerance=1.0",
        "--trainer.limit_val_batches=0",
        *none,
    )
    assert (run.model.iteration, run.trainer.global_step) == (2, 0)


def test_a_warmup_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="leave the callback out"):
        CriticWarmup(0)
    with pytest.raises(ConfigError, match=r"CriticWarmup\.part is 0"):
        CriticWarmup(part=0)
    with pytest.raises(ConfigError, match=r"CriticWarmup\.tolerance is -1"):
        CriticWarmup(tolerance=-1)
    with pytest.raises(ConfigError, match=r"CriticWarmup\.patience is 0"):
        CriticWarmup(patience=0)


def test_a_warmup_without_a_critic_is_refused():
    run = runs.prepare("--model.advantage=vagentrl.advantages.GroupRelative")
    with pytest.raises(ConfigError, match="uses no critic"):
        CriticWarmup(1).setup(run.trainer, run.model, "fit")
