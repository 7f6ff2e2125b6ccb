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
        "--trainer.callbacks.iterations=2",
        "--trainer.max_epochs=3",
        "--trainer.limit_val_batches=0",
    )
    watch = Watch()
    runs.callbacks(run).append(watch)
    run.trainer.fit(run.model, run.datamodule)
    before, first, second, third = watch.actors
    assert before == first == second != third
    assert len(set(watch.critics)) == 4


def test_a_warmup_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="leave the callback out"):
        CriticWarmup(0)


def test_a_warmup_without_a_critic_is_refused():
    run = runs.prepare("--model.advantage=vagentrl.advantages.GroupRelative")
    with pytest.raises(ConfigError, match="uses no critic"):
        CriticWarmup(1).setup(run.trainer, run.model, "fit")
