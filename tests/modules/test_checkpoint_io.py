import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from vagentrl.errors import VagentError
from vagentrl.modules.checkpoint_io import AtomicCheckpointIO

EARLIER, LATER = {"weights": torch.arange(4.0)}, {"weights": torch.arange(1000.0)}


@pytest.fixture
def io() -> AtomicCheckpointIO:
    return AtomicCheckpointIO()


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_checkpoint_comes_back_as_it_was(io: AtomicCheckpointIO, tmp_path: Path):
    path = tmp_path / "new" / "folder" / "last.ckpt"
    io.save_checkpoint(LATER, path)
    loaded = io.load_checkpoint(path)
    torch.testing.assert_close(loaded["weights"], LATER["weights"])
    assert contents(tmp_path) == ["last.ckpt"]


def test_a_checkpoint_takes_the_place_of_an_earlier_one(io: AtomicCheckpointIO, tmp_path: Path):
    path = tmp_path / "last.ckpt"
    io.save_checkpoint(EARLIER, path)
    io.save_checkpoint(LATER, str(path))
    assert len(io.load_checkpoint(path)["weights"]) == 1000
    io.remove_checkpoint(path)
    assert contents(tmp_path) == []


def test_a_full_disk_leaves_the_earlier_checkpoint(
    io: AtomicCheckpointIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "last.ckpt"
    io.save_checkpoint(EARLIER, path)

    def save(checkpoint: Any, file: Any) -> None:
        file.write(b"x" * 2**21)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(VagentError, match=r"No space left on device\); it stopped after 2.0 MiB"):
        io.save_checkpoint(LATER, path)
    torch.testing.assert_close(io.load_checkpoint(path)["weights"], EARLIER["weights"])
    assert contents(tmp_path) == ["last.ckpt"]


class FullDisk:
    """A file on a disk that is full after a given number of bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 100, 3000])
def test_torch_itself_on_a_full_disk_is_an_error_of_ours(
    room: int, io: AtomicCheckpointIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "last.ckpt"
    save: Any = torch.save
    monkeypatch.setattr(torch, "save", lambda saved, file: save(saved, FullDisk(file, room)))
    with pytest.raises(VagentError, match=r"could not be written \(\[Errno 28\] No space left"):
        io.save_checkpoint(LATER, path)
    assert contents(tmp_path) == []


def test_what_cannot_be_saved_leaves_nothing_behind(io: AtomicCheckpointIO, tmp_path: Path):
    with pytest.raises(AttributeError):  # a caller's mistake is not reported as a disk error
        io.save_checkpoint({"hook": lambda: None}, tmp_path / "last.ckpt")
    assert contents(tmp_path) == []


def test_storage_options_are_refused_as_lightning_does(io: AtomicCheckpointIO, tmp_path: Path):
    with pytest.raises(TypeError, match="storage_options"):
        io.save_checkpoint(LATER, tmp_path / "last.ckpt", storage_options={})
