import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer

from tests import runs
from vagentrl.callbacks import NewestCheckpoint, newest_checkpoint
from vagentrl.callbacks.checkpoint_folders import LOCK
from vagentrl.errors import ConfigError, VagentError
from vagentrl.modules import checkpoint_io
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.checkpoint_io import writing_of

BOTH = (
    "--trainer.callbacks=vagentrl.callbacks.NewestCheckpoint",
    "--trainer.callbacks.minutes=null",
    "--trainer.callbacks.iterations=2",
    "--trainer.callbacks.background=true",
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
    "--trainer.callbacks.monitor=val/success_rate",
    "--trainer.callbacks.mode=max",
    "--trainer.callbacks.save_top_k=2",
)


def test_the_newest_and_the_best_stand_side_by_side(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    saved: list[int] = []
    save = AgentModule.on_save_checkpoint
    rates = {1: 0.1, 2: 0.4, 3: 0.2, 4: 0.0, 5: 0.3}
    evaluate = AgentModule._evaluate

    def record(self: AgentModule, checkpoint: dict[str, Any]) -> None:
        saved.append(self.iteration)
        save(self, checkpoint)

    def score(self: AgentModule, batch: Any, prefix: str) -> None:
        evaluate(self, batch, prefix)
        self.log("val/success_rate", rates.get(self.iteration, 0.0), batch_size=1)

    monkeypatch.setattr(AgentModule, "on_save_checkpoint", record)
    monkeypatch.setattr(AgentModule, "_evaluate", score)
    run = runs.fit(*BOTH, "--trainer.max_epochs=5", "--trainer.check_val_every_n_epoch=1")
    # The newest after 2, 4 and the last; those that are the best or second best when they are seen
    # are 0.1 and 0.4 (iterations 1 and 2), 0.2 (3) and 0.3 (5).
    assert sorted(saved) == [1, 2, 2, 3, 4, 5, 5]
    folder = runs.folder(run) / "checkpoints"
    kept = {
        path.name: torch.load(path, weights_only=True)["iteration"]
        for path in folder.glob("*.ckpt")
    }
    assert kept.pop("last.ckpt") == 5
    assert sorted(kept.values()) == [2, 5]


EVERY = (
    "--trainer.callbacks=vagentrl.callbacks.NewestCheckpoint",
    "--trainer.callbacks.iterations=1",
    "--trainer.callbacks.background=true",
    "--trainer.limit_val_batches=0",
    "--trainer.max_epochs=4",
    "--trainer.callbacks+=tests.callbacks.test_newest_checkpoint",
)
FOLDER = Path("runs/toy/version_0/checkpoints")


class FillTheDisk(Callback):
    """In the second iteration, lets the next checkpoint be written to a full device."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            writing_of(trainer.strategy).wait()  # pyright: ignore
            (FOLDER / "last.ckpt.partial").symlink_to("/dev/full")


class Fail(Callback):
    """Fails in the third iteration."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 2:
            raise RuntimeError("the third iteration is ill")


def with_callbacks(*names: str) -> list[str]:
    return [*EVERY[:-1], *(f"{EVERY[-1]}.{name}" for name in names)]


def test_a_disk_that_fills_up_ends_the_run_after_the_next_iteration(run_dir: Path):
    with pytest.raises(VagentError, match=r"last.ckpt could not be written .*No space left"):
        runs.fit(*with_callbacks("FillTheDisk"))
    assert [path.name for path in FOLDER.iterdir()] == ["last.ckpt"]
    assert torch.load(FOLDER / "last.ckpt", weights_only=True)["iteration"] == 1


def test_a_run_that_fails_has_written_what_it_saved_and_keeps_the_folder_until_then(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    failed, locked = threading.Event(), []
    monkeypatch.setattr(Fail, "on_exception", lambda *_: failed.set())

    def fsync(_: int) -> None:
        if torch.load(FOLDER / "last.ckpt.partial", weights_only=True)["iteration"] == 2:
            assert failed.wait(60)
            time.sleep(0.1)  # the main thread now waits, or has given the folder away
        locked.append((FOLDER / LOCK).exists())

    monkeypatch.setattr(checkpoint_io.os, "fsync", fsync)
    with pytest.raises(RuntimeError, match="the third iteration is ill"):
        runs.fit(*with_callbacks("Fail"))
    assert locked == [True, True]
    assert [path.name for path in FOLDER.iterdir()] == ["last.ckpt"]
    assert torch.load(FOLDER / "last.ckpt", weights_only=True)["iteration"] == 2


def test_a_failed_write_does_not_hide_the_error_that_ended_the_run(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    with pytest.raises(RuntimeError, match="the third iteration is ill"):
        # The write after the second iteration fails, and the third begins all the same.
        runs.fit(*with_callbacks("FillTheDisk", "Fail"))
    assert "last.ckpt could not be written" in caplog.text


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_minutes_count_from_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    monkeypatch.setattr(newest_checkpoint, "time", clock)
    callback = NewestCheckpoint(minutes=10, iterations=100)
    trainer: Any = SimpleNamespace(should_stop=False, current_epoch=3, max_epochs=200)
    clock.now += 599
    assert not callback._is_due(trainer, 7)
    assert callback._is_due(trainer, 300)
    clock.now += 1
    assert callback._is_due(trainer, 7)
    callback._saved_at = clock.now
    assert not callback._is_due(trainer, 8)
    trainer.should_stop = True
    assert callback._is_due(trainer, 8)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"minutes": None}, "has neither minutes nor iterations"),
        ({"minutes": -1.0}, "minutes is -1.0"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"iterations": 0}, "iterations is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        NewestCheckpoint(**settings)
