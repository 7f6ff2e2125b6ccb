import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from vagentrl.callbacks import CheckpointFolders
from vagentrl.callbacks.checkpoint_folders import LOCK, tidy
from vagentrl.errors import VagentError
from vagentrl.modules.checkpoint_io import atomic_folder

LOCK_IT = """
import fcntl, os, sys, time
file = open(sys.argv[1], "a+")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit("locked")
print(f"process {os.getpid()} on a machine", file=file, flush=True)
print("begun", flush=True)
time.sleep(float(sys.argv[2]))
"""


@contextmanager
def another_run(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that trains in this folder."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCK_IT, str(folder / LOCK), "600"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def begin(folder: Path, resumed_from: Path | None = None) -> CheckpointFolders:
    trainer = Trainer(
        callbacks=ModelCheckpoint(folder),
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.ckpt_path = resumed_from
    callback = CheckpointFolders()
    callback.on_train_start(trainer, None)  # pyright: ignore
    return callback


def end(callback: CheckpointFolders) -> None:
    callback.teardown(None, None, "fit")  # pyright: ignore


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_killed_runs_left_is_removed_and_nothing_else(tmp_path: Path):
    kept = ["epoch=1.ckpt", "last.ckpt.bak", "notes.partial", "policy.partial", "x.ckpt.partial.d"]
    for name in [*kept, "last.ckpt.partial"]:
        (tmp_path / name).touch()
    for name in ("epoch=2.ckpt.partial", "epoch=1.ckpt.replaced"):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
    tidy(tmp_path)
    assert names(tmp_path) == kept


def test_a_link_is_removed_and_what_it_points_to_is_kept(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "last.ckpt.partial").symlink_to("elsewhere")
    tidy(tmp_path)
    assert names(tmp_path) == ["elsewhere"]
    assert names(tmp_path / "elsewhere") == ["file"]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_whole_folder_without_its_name_gets_it(earlier: bool, tmp_path: Path):
    with atomic_folder(tmp_path / "last.ckpt") as folder:
        (folder / "later.pt").touch()
    (tmp_path / "last.ckpt").rename(tmp_path / "last.ckpt.partial")  # killed before, or between
    (tmp_path / ("last.ckpt" if earlier else "last.ckpt.replaced")).mkdir()  # the renames
    tidy(tmp_path)
    assert names(tmp_path) == ["last.ckpt"]
    assert "later.pt" in names(tmp_path / "last.ckpt")


def test_another_run_s_folder_is_left_alone(tmp_path: Path):
    partial = tmp_path / "last.ckpt.partial"
    partial.touch()
    with another_run(tmp_path) as other:
        end(begin(tmp_path))
        assert partial.exists() and (tmp_path / LOCK).exists()
        with pytest.raises(VagentError, match=rf"in use by process {other.pid} on .*end that one"):
            begin(tmp_path, resumed_from=tmp_path / "last.ckpt")
        end(begin(tmp_path, resumed_from=tmp_path / "other" / "last.ckpt"))
        assert partial.exists()
    end(begin(tmp_path, resumed_from=tmp_path / "last.ckpt"))  # the process was killed
    assert names(tmp_path) == []


def test_a_run_has_its_folder_to_itself_until_it_ends(tmp_path: Path):
    mine = begin(tmp_path)
    claim = subprocess.run(
        [sys.executable, "-c", LOCK_IT, str(tmp_path / LOCK), "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert claim.stderr == "locked\n"
    end(mine)
    assert names(tmp_path) == []
