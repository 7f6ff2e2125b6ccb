from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import runs
from vagentrl.callbacks import NewestCheckpoint, newest_checkpoint
from vagentrl.errors import ConfigError
from vagentrl.modules.agent import AgentModule

BOTH = (
    "--trainer.callbacks=vagentrl.callbacks.NewestCheckpoint",
    "--trainer.callbacks.minutes=null",
    "--trainer.callbacks.iterations=2",
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
