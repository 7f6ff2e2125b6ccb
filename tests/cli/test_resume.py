"""``vagentrl fit --resume``: the newest run of the configuration goes on in its own folder."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy

from tests import runs
from vagentrl import make_trainer, resume
from vagentrl.cli.main import main
from vagentrl.cli.trainer import VagentCLI

QUICK = ("--trainer.limit_val_batches=0", "--trainer.enable_progress_bar=false")
RUNS = Path("runs/toy")


@pytest.fixture(autouse=True)
def _said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "propagate", True)
    caplog.set_level(logging.INFO)


def fit(iterations: int, *settings: str) -> VagentCLI:
    return runs.fit(*QUICK, f"--trainer.max_epochs={iterations}", *settings)


def test_a_killed_run_goes_on_in_its_folder_and_curve_to_the_same_weights(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    whole = fit(3)
    folder = RUNS / "version_0"
    for path in (folder / "checkpoints").iterdir():  # killed in the third iteration
        if path.name != "epoch=1-step=2.ckpt":
            path.unlink()
    (folder / "summary.json").unlink()

    resumed = fit(3, "--resume")
    assert "goes on after iteration 2 with runs/toy/version_0/checkpoints/epoch=1" in caplog.text
    assert runs.fingerprint(resumed.model) == runs.fingerprint(whole.model)
    assert [path.name for path in RUNS.iterdir()] == ["version_0"]
    assert (folder / "summary.json").exists()
    for name in ("rollout/return", "optim/actor_grad_norm"):
        assert [event.step for event in runs.events(resumed).Scalars(name)] == [1, 2, 3]

    last = folder / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["run_folder"] == str(folder)
    saved_at = last.stat().st_mtime_ns
    assert fit(3, "--resume").model.iteration == 3  # a finished job that is started again
    assert last.stat().st_mtime_ns == saved_at


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_a_resumed_run_goes_on_in_its_log(
    late: bool, run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    """DeepSpeed and FSDP2 load their checkpoints later than other strategies."""
    monkeypatch.setattr(SingleDeviceStrategy, "restore_checkpoint_after_setup", late)
    for iterations in (1, 2):
        fit(iterations, "--resume")
    log = (RUNS / "version_0" / "log.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in log]
    assert [row["iteration"] for row in logged if "time/update" in row] == [1, 2]


def save(path: Path, saved_at: float, iteration: int = 1, **changes: Any) -> Path:
    """A checkpoint with what `resume` looks at."""
    progress = {"fit_loop": {"epoch_loop.batch_progress": {"is_last_batch": True}}}
    state = {
        "iteration": iteration,
        "state_dict": {},
        "optimizer_states": [],
        "loops": progress,
        "run_folder": str(path.parent.parent),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state | changes, path)
    os.utime(path, (saved_at, saved_at))
    return path


def checkpoint(name: str, version: int = 0) -> Path:
    return RUNS / f"version_{version}" / "checkpoints" / name


def trainer(version: int | str | None = None, **settings: Any) -> Trainer:
    logger = TensorBoardLogger("runs", "toy", version=version)
    return make_trainer(**({"logger": logger, "max_epochs": 9, "accelerator": "cpu"} | settings))


def test_without_a_checkpoint_a_run_starts_from_the_beginning(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    assert resume(trainer()) is None
    assert "no checkpoint to go on from in runs/toy/*/checkpoints; the run starts" in caplog.text


def test_what_cannot_be_gone_on_from_is_passed_over_by_name(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    good = save(checkpoint("epoch=1.ckpt"), 100)
    within = {"fit_loop": {"epoch_loop.batch_progress": {"is_last_batch": False}}}
    save(checkpoint("within.ckpt"), 200, loops=within)
    weights = {"state_dict": {}, "iteration": 1}
    torch.save(weights, checkpoint("weights.ckpt"))
    torn = save(checkpoint("last.ckpt"), 1)
    torn.write_bytes(torn.read_bytes()[:-100])
    save(checkpoint("objects.ckpt"), 300, owner=Path())  # unpickling it could run any code
    assert resume(trainer()) == str(good)
    assert "last.ckpt is not whole, as after a crash (the file has no end)" in caplog.text
    assert "weights.ckpt is passed over: the checkpoint holds weights alone" in caplog.text
    assert "within.ckpt is passed over: the checkpoint was saved within iteration" in caplog.text
    assert "objects.ckpt is passed over" in caplog.text


def test_the_newest_run_goes_on_unless_the_logger_names_one(run_dir: Path):
    older = save(checkpoint("last.ckpt", 0), 100)
    newer = save(checkpoint("last.ckpt", 1), 200)
    newest = trainer()
    assert resume(newest) == str(newer)
    assert newest.log_dir == str(RUNS / "version_1")
    for name in (0, "version_0"):
        named = trainer(version=name)
        assert resume(named) == str(older)
        assert named.log_dir == str(RUNS / "version_0")


def test_a_run_that_was_moved_goes_on_where_it_is_now(run_dir: Path):
    save(checkpoint("last.ckpt"), 100)
    Path("runs/toy/version_0").rename("runs/toy/kept")
    moved = trainer()
    resume(moved)
    assert moved.log_dir == "runs/toy/kept"


def test_a_run_that_saves_elsewhere_goes_on_in_its_own_folder(run_dir: Path):
    own = save(Path("elsewhere/last.ckpt"), 100, run_folder="runs/toy/version_7")
    save(checkpoint("last.ckpt"), 200)
    elsewhere = trainer(callbacks=ModelCheckpoint("elsewhere"))
    assert resume(elsewhere) == str(own.resolve())
    assert elsewhere.log_dir == "runs/toy/version_7"


def test_a_logger_that_cannot_go_on_is_named(run_dir: Path, caplog: pytest.LogCaptureFixture):
    save(checkpoint("last.ckpt"), 100)
    resume(trainer(logger=CSVLogger("runs", "toy")))
    assert "CSVLogger begins a new curve" in caplog.text


def test_what_goes_against_each_other_is_refused(run_dir: Path):
    with pytest.raises(SystemExit, match="but --ckpt_path is last; give one of the two"):
        main(["fit", *runs.arguments("--resume", "--ckpt_path=last")])
    with pytest.raises(SystemExit, match="--resume is for `fit`; for `test` give --ckpt_path last"):
        main(["test", *runs.arguments("--resume")])
