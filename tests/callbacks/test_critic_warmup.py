from typing import Any

import pytest
from lightning import Callback, LightningModule, Trainer

from tests import runs
from vagentrl.callbacks import CriticWarmup
from vagentrl.errors import ConfigError


class Watch(Callback):
    """Notes what the models are before training and after each iteration."""

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
    assert run.datamodule._warmup is None  # the memory is given back


def test_a_warmup_ends_when_the_loss_no_longer_falls(run_dir: Any):
    run = warmed("rounds=3", "tolerance=1.0")  # it would have to fall below 0
    assert run.model.warmup.rounds == 2
    assert scalars(run, "rollout/episodes") == [4, 4, 4]
    assert len(scalars(run, "train/policy_loss")) == 2


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


def test_a_warmup_without_a_critic_is_refused():
    run = runs.prepare("--model.advantage=vagentrl.advantages.GroupRelative")
    with pytest.raises(ConfigError, match="uses no critic"):
        CriticWarmup(1).setup(run.trainer, run.model, "fit")
