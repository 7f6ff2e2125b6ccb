"""``--ckpt_path``: a path, `last` or `best`, and never a start from nothing."""

import os
from pathlib import Path

import pytest
import torch
from lightning import Trainer

from tests import runs
from vagentrl import ranks
from vagentrl.cli.checkpoints import SameOnAllRanks
from vagentrl.cli.main import main
from vagentrl.cli.trainer import VagentCLI
from vagentrl.errors import ConfigError
from vagentrl.modules.checkpoint_io import END_MARK, atomic_folder
from vagentrl.modules.saved_checkpoints import newest_checkpoint

FIRST_IS_BEST = (
    "--trainer.callbacks=lightning.pytorch.callbacks.ModelCheckpoint",
    "--trainer.callbacks.monitor=step",
    "--trainer.callbacks.mode=min",
    "--trainer.callbacks.save_top_k=-1",  # with fewer, Lightning saves the last with them only
    "--trainer.callbacks.save_last=true",
    "--trainer.callbacks.save_on_train_epoch_end=true",
    "--trainer.limit_val_batches=0",
)


def save(path: Path, saved_at: float, content: object = None) -> Path:
    """A checkpoint, as small as it gets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content or {}, path)
    os.utime(path, (saved_at, saved_at))
    return path


def tear(path: Path) -> None:
    """Leave of a file what a crash may leave: its beginning."""
    saved_at = path.stat().st_mtime
    path.write_bytes(path.read_bytes()[:-100])
    os.utime(path, (saved_at, saved_at))


def refusal(*arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return str(ended.value.code)


def test_the_newest_checkpoint_of_all_runs_is_found(tmp_path: Path):
    save(tmp_path / "version_0/checkpoints/last.ckpt", 100)
    newest = save(tmp_path / "version_1/checkpoints/epoch=1.ckpt", 300)
    save(tmp_path / "version_2/checkpoints/last.ckpt", 200)
    save(tmp_path / "version_2/checkpoints/last.ckpt.partial", 400)
    assert newest_checkpoint([f"{tmp_path}/*/checkpoints"]) == newest
    assert newest_checkpoint([f"{tmp_path}/*/checkpoints"], since=301) is None
    assert newest_checkpoint([f"{tmp_path}/elsewhere"]) is None


def test_a_torn_checkpoint_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    whole = save(tmp_path / "epoch=0.ckpt", 100)
    tear(save(tmp_path / "epoch=1.ckpt", 200))
    assert newest_checkpoint([str(tmp_path)]) == whole
    assert "epoch=1.ckpt is not whole" in caplog.text


def test_a_folder_without_its_end_mark_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    whole = save(tmp_path / "epoch=0.ckpt", 100)
    folder = tmp_path / "last.ckpt"
    with atomic_folder(folder) as partial:
        state = partial / "state.pt"
        torch.save({}, state)
    assert newest_checkpoint([str(tmp_path)]) == folder
    (folder / END_MARK).unlink()
    assert newest_checkpoint([str(tmp_path)]) == whole
    assert "last.ckpt is not whole" in caplog.text and "has no complete.json" in caplog.text


@pytest.mark.parametrize("command", ["fit", "validate", "test"])
@pytest.mark.parametrize("wanted", ["last", "best"])
def test_without_an_earlier_run_nothing_is_started(command: str, wanted: str, run_dir: Path):
    said = refusal(command, *runs.arguments("--ckpt_path", wanted))
    assert f"--ckpt_path {wanted}: there is no whole checkpoint in runs/toy/*/checkpoints" in said
    assert not Path("runs").exists()


def test_last_goes_on_from_the_newest_run_and_best_from_its_best_checkpoint(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    runs.fit(*FIRST_IS_BEST, "--trainer.max_epochs=1")
    resumed = runs.fit(*FIRST_IS_BEST, "--trainer.max_epochs=3", "--ckpt_path=last")
    assert resumed.model.iteration == 3
    whole = runs.fit(*FIRST_IS_BEST, "--trainer.max_epochs=3")  # as if it had never stopped
    assert runs.fingerprint(resumed.model) == runs.fingerprint(whole.model)

    last = VagentCLI(["test", *runs.arguments(*FIRST_IS_BEST, "--ckpt_path=last")])
    assert last.model.iteration == 3
    assert last.trainer.ckpt_path == "runs/toy/version_2/checkpoints/last.ckpt"
    best = VagentCLI(["validate", *runs.arguments(*FIRST_IS_BEST, "--ckpt_path=best")])
    assert best.model.iteration == 1
    assert best.trainer.ckpt_path == whole.trainer.checkpoint_callback.best_model_path  # pyright: ignore


def test_best_of_a_run_that_was_moved_is_found_beside_its_last(run_dir: Path):
    runs.fit(*FIRST_IS_BEST, "--trainer.max_epochs=2")
    Path("runs").rename("moved")
    moved = ("--trainer.logger.init_args.save_dir=moved", "--ckpt_path=best")
    best = VagentCLI(["validate", *runs.arguments(*FIRST_IS_BEST, *moved)])
    assert best.trainer.ckpt_path == "moved/toy/version_0/checkpoints/epoch=0-step=1.ckpt"
    Path(best.trainer.ckpt_path).unlink()
    assert "is not there or not whole" in refusal("fit", *runs.arguments(*FIRST_IS_BEST, *moved))


def test_best_needs_a_monitor(run_dir: Path):
    runs.fit("--trainer.max_epochs=1")
    said = refusal("fit", *runs.arguments("--ckpt_path=best"))
    assert "compared no checkpoints by a monitor" in said and "val/success_rate" in said


def test_several_best_checkpoints_are_named(run_dir: Path):
    states = {
        name: {"monitor": name, "best_model_path": f"{name}.ckpt"} for name in ("epoch", "step")
    }
    save(Path("runs/toy/version_0/checkpoints/last.ckpt"), 100, {"callbacks": states})
    said = refusal("fit", *runs.arguments("--ckpt_path=best"))
    assert "may mean several: epoch.ckpt by epoch, step.ckpt by step" in said


def test_where_a_callback_or_the_root_folder_decides_last_is_looked_for_there(run_dir: Path):
    elsewhere = "--trainer.callbacks.dirpath=elsewhere"
    said = refusal("fit", *runs.arguments(*FIRST_IS_BEST, elsewhere, "--ckpt_path=last"))
    assert "there is no whole checkpoint in" in said and "elsewhere" in said
    said = refusal("fit", *runs.arguments("--trainer.logger=false", "--ckpt_path=last"))
    assert "there is no whole checkpoint in runs/checkpoints" in said


def test_a_path_is_taken_as_it_is_or_refused(run_dir: Path):
    runs.fit("--trainer.max_epochs=1", "--trainer.limit_val_batches=0")
    folder = Path("runs/toy/version_0")
    assert "it holds checkpoints/epoch=0-step=1.ckpt, checkpoints/last.ckpt" in refusal(
        "fit", *runs.arguments("--ckpt_path", str(folder))
    )
    tear(folder / "checkpoints/last.ckpt")
    assert "last.ckpt cannot be read as a checkpoint" in refusal(
        "validate", *runs.arguments("--ckpt_path", str(folder / "checkpoints/last.ckpt"))
    )
    assert "--ckpt_path hpc: jobs are not requeued" in refusal(
        "fit", *runs.arguments("--ckpt_path=hpc")
    )


def test_ranks_that_found_different_checkpoints_are_refused(monkeypatch: pytest.MonkeyPatch):
    trainer = Trainer(logger=False, barebones=True)
    SameOnAllRanks().setup(trainer, None, "fit")  # pyright: ignore
    monkeypatch.setattr(ranks, "gather", lambda mine: [*mine, "other.ckpt"])
    with pytest.raises(ConfigError, match=r"different checkpoints \(None, other\.ckpt\)"):
        SameOnAllRanks().setup(trainer, None, "fit")  # pyright: ignore
