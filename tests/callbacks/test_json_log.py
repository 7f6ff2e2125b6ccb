import json
import math
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.utilities import rank_zero_only

from tests import notebook, runs
from vagentrl import make_trainer
from vagentrl.callbacks.json_log import JSONLinesLogger


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_metrics_become_a_line_and_what_is_not_finite_becomes_null(tmp_path: Path):
    log = JSONLinesLogger(tmp_path / "new" / "log.jsonl")
    log.log_metrics({"b": 1.5, "a": math.nan}, 3)
    log.log_metrics({"a": -math.inf}, 4)
    first, second = lines(tmp_path / "new" / "log.jsonl")
    assert first.pop("seconds") <= second.pop("seconds")
    assert first == {"iteration": 3, "a": None, "b": 1.5}
    assert second == {"iteration": 4, "a": None}


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    JSONLinesLogger(tmp_path / "log.jsonl").log_metrics({"a": 1.0}, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_run_logs_every_iteration_and_evaluation_once(run_dir: Path):
    run = runs.fit("--trainer.max_epochs=3")
    written = lines(runs.folder(run) / "log.jsonl")
    played = [line["iteration"] for line in written if "rollout/return" in line]
    evaluated = [line["iteration"] for line in written if "val/return" in line]
    assert (played, evaluated) == ([1, 2, 3], [0, 2, 3])
    seconds = [line["seconds"] for line in written]
    assert seconds == sorted(seconds)
    scalars = runs.events(run).Scalars("train/entropy")
    assert [line["train/entropy"] for line in written if "train/entropy" in line] == pytest.approx(
        [event.value for event in scalars]
    )
    assert run.trainer.loggers[1:] == []


def test_without_a_logger_a_run_starts_its_log_anew_and_a_resumed_one_adds_to_it(run_dir: Path):
    settings = ("--trainer.logger=false", "--trainer.limit_val_batches=0")
    for _ in range(2):
        runs.fit(*settings, "--trainer.max_epochs=1")
    path = run_dir / "runs" / "log.jsonl"
    assert [line["iteration"] for line in lines(path)] == [1]
    last = str(run_dir / "runs" / "checkpoints" / "last.ckpt")
    runs.fit(*settings, "--trainer.max_epochs=2", "--ckpt_path", last)
    assert [line["iteration"] for line in lines(path)] == [1, 2]


def test_a_run_that_was_broken_off_leaves_no_logger_behind(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    agent, data = notebook.agent(), notebook.data()
    trainer = make_trainer(**notebook.QUIET | {"max_epochs": 1})

    def broken(*given: object) -> None:
        raise RuntimeError("stop")

    with monkeypatch.context() as patch:
        patch.setattr(agent, "training_step", broken)
        with pytest.raises(RuntimeError, match="stop"):
            trainer.fit(agent, data)
    assert trainer.loggers == []
    trainer.fit(agent, data)
    assert trainer.loggers == []
    played = [line for line in lines(Path("runs/log.jsonl")) if "rollout/return" in line]
    assert [line["iteration"] for line in played] == [1]
