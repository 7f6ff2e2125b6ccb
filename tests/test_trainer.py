"""Training from Python: with Lightning's own trainer, with ours, and more than once."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from tests import notebook, runs
from vagentrl import make_trainer
from vagentrl.callbacks import AgentCallback, EvaluateAtEnds, KLControl, RunSummary
from vagentrl.errors import ConfigError
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.optimizer import AdamW
from vagentrl.types import Trajectory


class Played(AgentCallback):
    """Keeps the seeds of each iteration's episodes, and the iterations that were evaluated."""

    def __init__(self) -> None:
        self.seeds: list[list[int]] = []
        self.evaluated: list[int] = []

    def on_trajectories(
        self, agent: AgentModule, trajectories: list[Trajectory]
    ) -> list[Trajectory]:
        self.seeds.append([trajectory.seed for trajectory in trajectories])
        return trajectories

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.evaluated.append(pl_module.iteration)  # pyright: ignore


def all_differ(batches: list[list[int]]) -> bool:
    seeds = {seed for batch in batches for seed in batch}
    return len(seeds) == 2 * len(batches)  # two groups in each


def test_lightnings_own_trainer_plays_new_episodes_in_every_iteration(run_dir: Path):
    played, summary, agent = Played(), RunSummary(), notebook.agent()
    trainer = notebook.trainer(max_epochs=3, callbacks=[played, summary])
    trainer.fit(agent, notebook.data())
    assert len(played.seeds) == agent.iteration == 3 and all_differ(played.seeds)
    assert played.evaluated == [1, 2, 3]  # no sanity check before
    assert summary.summary()["episodes"] == 12


def test_our_trainer_is_that_of_the_command_line(run_dir: Path):
    theirs = runs.prepare("--trainer.callbacks=[]").trainer
    ours = make_trainer(accelerator="cpu", max_epochs=2, check_val_every_n_epoch=2)
    for name in ("default_root_dir", "log_every_n_steps", "max_epochs", "num_sanity_val_steps"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.reload_dataloaders_every_n_epochs == 1  # pyright: ignore
    kinds = [{type(callback) for callback in t.callbacks} for t in (ours, theirs)]  # pyright: ignore
    assert kinds[0] == {kind for kind in kinds[1] if not issubclass(kind, SaveConfigCallback)}
    assert type(ours.strategy.checkpoint_io) is type(theirs.strategy.checkpoint_io)
    assert isinstance(ours.logger, TensorBoardLogger) and ours.logger.save_dir == "runs"


def test_what_is_given_takes_the_place_of_a_default(run_dir: Path):
    bar, ends = TQDMProgressBar(), EvaluateAtEnds()
    trainer = make_trainer(callbacks=[bar, ends], logger=False, default_root_dir="elsewhere")
    callbacks: list[Callback] = trainer.callbacks  # pyright: ignore
    assert callbacks[:2] == [bar, ends]
    assert [type(callback) for callback in callbacks].count(EvaluateAtEnds) == 1
    assert trainer.loggers == [] and trainer.default_root_dir == "elsewhere"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"reload_dataloaders_every_n_epochs": 0}, "reload_dataloaders_every_n_epochs is 0, but"),
        ({"max_epoch": 3}, "refuses its settings: .* unexpected keyword argument 'max_epoch'"),
        ({"strategy": "nonsense"}, "refuses its settings: .*nonsense"),
        ({"callbacks": [KLControl]}, "holds <class .*KLControl'>, which is no callback"),
        ({"barebones": True}, "barebones is True, but it switches off all logging"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(arguments: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        make_trainer(**arguments)


def test_a_run_without_a_number_of_iterations_is_refused(run_dir: Path):
    with pytest.raises(ConfigError, match=r"max_epochs is -1, but learning-rate schedules"):
        make_trainer(accelerator="cpu", logger=False).fit(notebook.agent(), notebook.data())


class Rates(Callback):
    """Keeps the actor's learning rate in each iteration."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_a_second_trainer_goes_on_where_the_first_ended():
    played, rates = Played(), Rates()
    agent = notebook.agent(optimizer=AdamW(actor_lr=1.0e-3, final_lr_scale=0.0))
    data = notebook.data(minibatch_size=4, micro_batch_size=4)
    for epochs in (1, 2):
        callbacks = [played, rates, EvaluateAtEnds()]
        notebook.trainer(max_epochs=epochs, callbacks=callbacks, check_val_every_n_epoch=10).fit(
            agent, data
        )
    assert agent.iteration == 3
    assert all_differ(played.seeds)
    assert played.evaluated == [0, 1, 1, 3]
    # the only iteration of the first run; then the second and the last of three, which reaches 0
    assert rates.seen == pytest.approx([1e-3, 1e-3 / 2, 0.0])


def test_the_same_trainer_goes_on_once_it_may(caplog: pytest.LogCaptureFixture):
    agent, data, played = notebook.agent(), notebook.data(), Played()
    trainer = notebook.trainer(max_epochs=1, limit_val_batches=0, callbacks=[played])
    trainer.fit(agent, data)
    before = runs.fingerprint(agent)
    with caplog.at_level(logging.WARNING, "vagentrl.datamodule"):
        trainer.fit(agent, data)
    assert "1 of 1 iterations are completed, so no episodes are played" in caplog.text
    assert len(played.seeds) == 1 and runs.fingerprint(agent) == before
    trainer.fit_loop.max_epochs = 2
    trainer.fit(agent, data)
    assert agent.iteration == 2 and all_differ(played.seeds)
    assert runs.fingerprint(agent) != before


def test_another_module_of_the_same_policy_gets_episodes_of_its_own():
    data = notebook.data()
    for _ in range(2):
        played = Played()
        trainer = notebook.trainer(max_epochs=1, limit_val_batches=0, callbacks=[played])
        trainer.fit(notebook.agent(), data)
        assert len(played.seeds) == 1


def test_a_module_of_another_policy_needs_another_datamodule():
    data = notebook.data()
    notebook.trainer().validate(notebook.agent(), data, verbose=False)
    with pytest.raises(ConfigError, match=r"has the engine and the tokenizer of .*make another"):
        notebook.trainer().validate(notebook.agent(policy="tiny-sokoban-text"), data)


def test_a_reference_may_be_needed_only_after_an_evaluation():
    agent, data = notebook.agent(images=True, freeze_vision=True), notebook.data(images=True)
    trainer = notebook.trainer(max_epochs=1, callbacks=[KLControl()])
    trainer.validate(agent, data, verbose=False)
    start = runs.fingerprint(agent.actor)
    trainer.fit(agent, data)
    assert agent.reference is not None
    assert runs.fingerprint(agent.reference) == start != runs.fingerprint(agent.actor)


class StopOnce(Callback):
    """Raises in the middle of the first iteration, as a person may who stops a cell."""

    stopped = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self.stopped:
            self.stopped = True
            raise RuntimeError("stop")


def test_a_run_that_was_broken_off_can_be_started_again():
    agent, data = notebook.agent(), notebook.data()
    trainer = notebook.trainer(max_epochs=1, callbacks=[StopOnce()])
    with pytest.raises(RuntimeError, match="stop"):
        trainer.fit(agent, data)
    trainer.fit(agent, data)
    assert agent.iteration == 1


def test_a_notebooks_event_loop_may_run_meanwhile():
    async def cell() -> int:
        agent = notebook.agent()
        notebook.trainer(max_epochs=1).fit(agent, notebook.data())
        return agent.iteration

    assert asyncio.run(cell()) == 1


def test_a_run_that_went_on_is_resumed_with_its_own_end(tmp_path: Path):
    agent, data, path = notebook.agent(), notebook.data(), str(tmp_path / "one.ckpt")
    notebook.trainer(max_epochs=1).fit(agent, data)
    second = notebook.trainer(max_epochs=1)
    second.fit(agent, data)
    second.save_checkpoint(path)
    assert torch.load(path, weights_only=True)["first_iteration"] == 1
    resumed, third = notebook.agent(), notebook.trainer(max_epochs=2)
    third.fit(resumed, notebook.data(), ckpt_path=path)
    assert (resumed.iteration, resumed.total_iterations) == (3, 3)
