"""Checkpoints that are written while training goes on."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.distributed.checkpoint import state_dict_loader

from vagentrl.errors import VagentError
from vagentrl.modules import checkpoint_io
from vagentrl.modules.background_write import BackgroundWrite, in_background
from vagentrl.modules.checkpoint_io import AtomicCheckpointIO, atomic_folder, save_whole_folders
from vagentrl.modules.sharded_checkpoint import SavedWeights, Snapshot

EARLIER, LATER = {"weights": torch.arange(4.0)}, {"weights": torch.arange(1000.0)}


class Disk:
    """A disk on which a file is only complete when it is let go."""

    def __init__(self) -> None:
        self.reached, self.free = threading.Event(), threading.Event()
        self.error: OSError | None = None

    def fsync(self, descriptor: int) -> None:
        self.reached.set()
        assert self.free.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture
def io() -> AtomicCheckpointIO:
    return AtomicCheckpointIO()


@pytest.fixture
def disk(io: AtomicCheckpointIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    slow = Disk()
    monkeypatch.setattr(checkpoint_io.os, "fsync", slow.fsync)
    yield slow
    slow.free.set()
    slow.error = None
    io.teardown()


def save(io: AtomicCheckpointIO, checkpoint: dict[str, Any], path: Path) -> None:
    with in_background():
        io.save_checkpoint(checkpoint, path)


def test_the_file_has_the_values_from_when_it_was_saved(
    io: AtomicCheckpointIO, disk: Disk, tmp_path: Path
):
    weights, steps = torch.arange(4.0), [1, 2]
    tied = weights[1:]
    save(io, {"weights": weights, "tied": tied, "steps": steps}, tmp_path / "last.ckpt")
    weights += 1
    steps.append(3)
    assert not (tmp_path / "last.ckpt").exists()  # it is still being written
    disk.free.set()
    loaded = io.load_checkpoint(tmp_path / "last.ckpt")
    assert loaded["weights"].tolist() == [0, 1, 2, 3]
    assert loaded["steps"] == [1, 2]
    loaded["weights"][1] = 9.0
    assert loaded["tied"].tolist() == [9, 2, 3]  # weights that share memory still do


def test_the_file_is_the_one_that_a_waiting_save_writes(io: AtomicCheckpointIO, tmp_path: Path):
    save(io, LATER, tmp_path / "background" / "last.ckpt")
    io.save_checkpoint(LATER, tmp_path / "waiting" / "last.ckpt")
    one, other = (tmp_path / name / "last.ckpt" for name in ("background", "waiting"))
    assert [path.name for path in tmp_path.rglob("*.partial")] == []
    torch.testing.assert_close(io.load_checkpoint(one), io.load_checkpoint(other))


def test_the_earlier_file_stays_until_the_later_one_is_on_the_disk(
    io: AtomicCheckpointIO, disk: Disk, tmp_path: Path
):
    path = tmp_path / "last.ckpt"
    disk.free.set()
    io.save_checkpoint(EARLIER, path)
    disk.free.clear()
    disk.reached.clear()
    save(io, LATER, path)
    assert disk.reached.wait(60)
    assert len(torch.load(path)["weights"]) == 4
    disk.free.set()
    io.teardown()
    assert len(torch.load(path)["weights"]) == 1000


@pytest.mark.parametrize("act", ["save", "save in background", "load", "remove", "teardown"])
def test_everything_else_waits_for_the_write(
    act: str, io: AtomicCheckpointIO, disk: Disk, tmp_path: Path
):
    path = tmp_path / "last.ckpt"
    save(io, LATER, path)
    assert disk.reached.wait(60)
    acts = {
        "save": lambda: io.save_checkpoint(EARLIER, tmp_path / "best.ckpt"),
        "save in background": lambda: save(io, EARLIER, tmp_path / "best.ckpt"),
        "load": lambda: io.load_checkpoint(path),
        "remove": lambda: io.remove_checkpoint(path),
        "teardown": io.teardown,
    }
    thread = threading.Thread(target=acts[act])
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt.partial"]
    disk.free.set()
    thread.join(60)
    assert not thread.is_alive()
    assert path.exists() == (act != "remove")


def test_a_full_disk_is_an_error_of_the_next_save_and_the_earlier_file_stays(
    io: AtomicCheckpointIO, disk: Disk, tmp_path: Path
):
    path = tmp_path / "last.ckpt"
    disk.free.set()
    io.save_checkpoint(EARLIER, path)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    save(io, LATER, path)
    with pytest.raises(VagentError, match=r"last.ckpt could not be written .* No space left"):
        save(io, LATER, tmp_path / "next.ckpt")
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
    assert len(torch.load(path)["weights"]) == 4
    io.teardown()  # it was said once


def test_a_full_disk_is_an_error_at_the_end(io: AtomicCheckpointIO, disk: Disk, tmp_path: Path):
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    disk.free.set()
    save(io, LATER, tmp_path / "last.ckpt")
    with pytest.raises(VagentError, match="No space left"):
        io.teardown()


def test_a_failed_write_is_told_without_waiting():
    writing, free = BackgroundWrite(), threading.Event()

    def fail() -> None:
        assert free.wait(60)
        raise VagentError("the disk is full")

    writing.start(fail)
    writing.raise_if_failed()  # nothing has failed yet
    free.set()
    with pytest.raises(VagentError, match="the disk is full"):
        while True:
            writing.raise_if_failed()


def test_an_interrupted_wait_neither_ends_nor_forgets_the_write(
    io: AtomicCheckpointIO, disk: Disk, tmp_path: Path
):
    save(io, LATER, tmp_path / "last.ckpt")
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        io.teardown()
    disk.free.set()
    io.teardown()
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


AT_ONCE = """
import time
from pathlib import Path
from vagentrl.modules.background_write import BackgroundWrite
def write():
    time.sleep(0.2)
    Path("written").touch()
BackgroundWrite().start(write)
"""


def test_a_program_that_ends_right_after_a_save_has_saved(tmp_path: Path):
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", AT_ONCE], cwd=tmp_path, check=True, env=os.environ | path)
    assert (tmp_path / "written").exists()


def test_killed_while_the_thread_writes_the_earlier_file_stays(
    io: AtomicCheckpointIO, disk: Disk, tmp_path: Path
):
    disk.free.set()
    io.save_checkpoint(EARLIER, tmp_path / "last.ckpt")
    disk.free.clear()
    disk.reached.clear()
    child = os.fork()
    if child == 0:
        save(io, LATER, tmp_path / "last.ckpt")
        disk.reached.wait(60)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / "last.ckpt.partial").exists()
    assert checkpoint_io.checkpoints_in(tmp_path) == [tmp_path / "last.ckpt"]
    assert len(torch.load(tmp_path / "last.ckpt")["weights"]) == 4


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_has_the_values_from_when_its_snapshot_was_made(tmp_path: Path):
    weight, moment, loops = torch.arange(4.0), torch.ones(4), {"epoch": 1}
    moments = {"state": {"w": {"exp_avg": moment}}, "param_groups": [{"lr": 0.1}]}
    snapshot = Snapshot(
        {"state_dict": {"w": weight}, "optimizer_states": [moments], "loops": loops}
    )
    weight += 1
    moment += 1
    moments["param_groups"][0]["lr"] = 0.2  # pyright: ignore
    loops["epoch"] = 2
    snapshot.write(tmp_path)
    assert SavedWeights(tmp_path).read("w").tolist() == [0, 1, 2, 3]
    assert SavedWeights(tmp_path).others() == {"loops": {"epoch": 1}}
    read = {
        "optimizer_0": {"state": {"w": {"exp_avg": torch.zeros(4)}}, "param_groups": [{"lr": 0}]}
    }
    state_dict_loader.load(read, checkpoint_id=tmp_path, no_dist=True)
    assert read["optimizer_0"]["state"]["w"]["exp_avg"].tolist() == [1, 1, 1, 1]  # pyright: ignore


class Folders(SingleDeviceStrategy):
    """Saves folders in the background: a file with the word that is saved."""

    def __init__(self) -> None:
        super().__init__(checkpoint_io=AtomicCheckpointIO())
        save_whole_folders(self, self.save_in_background)

    def save_in_background(
        self, writing: BackgroundWrite, path: str | Path, checkpoint: dict[str, Any]
    ) -> None:
        def write() -> None:
            with atomic_folder(path) as folder:
                (folder / "word").write_text(checkpoint["word"])

        writing.start(write)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return {"word": (Path(checkpoint_path) / "word").read_text()}


def test_a_folder_is_written_in_the_background_and_loaded_when_it_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    slow, path = Disk(), tmp_path / "last.ckpt"
    monkeypatch.setattr(checkpoint_io.os, "fsync", slow.fsync)
    strategy = Folders()
    with in_background():
        strategy.save_checkpoint({"word": "saved"}, path)
    assert slow.reached.wait(60)
    assert not path.exists()
    threading.Timer(0.05, slow.free.set).start()
    assert strategy.load_checkpoint(path) == {"word": "saved"}
    assert sorted(file.name for file in path.iterdir()) == [checkpoint_io.END_MARK, "word"]
