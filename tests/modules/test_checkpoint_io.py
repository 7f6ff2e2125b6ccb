import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from vagentrl import ranks
from vagentrl.errors import ConfigError, VagentError
from vagentrl.modules.checkpoint_io import (
    END_MARK,
    AtomicCheckpointIO,
    atomic_folder,
    check_whole,
    checkpoints_in,
    is_whole,
    save_whole_folders,
)

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


# ------------------------------------------------------------------------------------- folders


def write(folder: Path, content: str) -> None:
    (folder / "shards").mkdir()
    for number in range(2):
        (folder / "shards" / f"{number}.pt").write_text(f"{content} {number}")


def save_folder(path: Path, content: str) -> None:
    with atomic_folder(path) as partial:
        write(partial, content)


def first_shard(path: Path) -> str:
    return (path / "shards" / "0.pt").read_text()


def test_a_folder_takes_the_place_of_an_earlier_one(tmp_path: Path):
    path = tmp_path / "new" / "last.ckpt"
    save_folder(path, "earlier")
    save_folder(path, "later")
    assert first_shard(path) == "later 0"
    assert contents(tmp_path) == ["0.pt", "1.pt", END_MARK]
    # "later 0" has 7 bytes
    assert json.loads((path / END_MARK).read_text()) == {"shards/0.pt": 7, "shards/1.pt": 7}
    check_whole(path)


def test_a_folder_takes_the_place_of_a_file_and_of_a_link(tmp_path: Path):
    (tmp_path / "last.ckpt").write_text("saved without DeepSpeed")
    save_folder(tmp_path / "last.ckpt", "later")
    save_folder(tmp_path / "epoch=1.ckpt", "linked")
    (tmp_path / "link.ckpt").symlink_to("epoch=1.ckpt")
    save_folder(tmp_path / "link.ckpt", "own")
    assert first_shard(tmp_path / "last.ckpt") == "later 0"
    assert first_shard(tmp_path / "link.ckpt") == "own 0"
    assert first_shard(tmp_path / "epoch=1.ckpt") == "linked 0"


def test_what_a_killed_run_left_of_a_folder_is_no_part_of_the_next(tmp_path: Path):
    stale = tmp_path / "last.ckpt.partial" / "shards"
    stale.mkdir(parents=True)
    (stale / "9.pt").write_text("of a run with ten ranks")
    save_folder(tmp_path / "last.ckpt", "later")
    assert contents(tmp_path) == ["0.pt", "1.pt", END_MARK]


class Killed(BaseException):
    """Stands for SIGKILL, after which nothing of the process runs any more."""


def kill_at(monkeypatch: pytest.MonkeyPatch, call: int) -> list[str]:
    """End the process at its n-th call that changes the disk; returns what was called before."""
    called: list[str] = []

    def fatal(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if len(called) >= call:
                raise Killed  # also in what cleans up: a killed process cleans nothing up
            called.append(name)
            return real(*args, **kwargs)

        return run

    paths = [(Path, name) for name in ("rename", "unlink", "mkdir", "open")]
    for owner, name in (*paths, (os, "fsync")):
        monkeypatch.setattr(owner, name, fatal(name, getattr(owner, name)))
    rmtree: Any = "vagentrl.modules.checkpoint_io.shutil.rmtree"
    monkeypatch.setattr(rmtree, fatal("rmtree", __import__("shutil").rmtree))
    monkeypatch.setattr(Path, "write_text", fatal("write", Path.write_text))
    return called


def test_killed_anywhere_a_folder_is_the_earlier_or_the_later_one_and_whole(tmp_path: Path):
    kills, outcomes = 0, []
    for call in range(100):
        place = tmp_path / str(call)
        save_folder(place / "last.ckpt", "earlier")
        with pytest.MonkeyPatch.context() as monkeypatch:
            kill_at(monkeypatch, call)
            try:
                save_folder(place / "last.ckpt", "later")
            except Killed:
                kills += 1
        found = [first_shard(path) for path in checkpoints_in(place) if is_whole(path)]
        assert found in (["earlier 0"], ["later 0"], ["earlier 0", "later 0"])
        outcomes.append(found[-1])
        save_folder(place / "last.ckpt", "resumed")  # whatever was left, the next one is written
        assert contents(place) == ["0.pt", "1.pt", END_MARK]
        if kills <= call:
            break
    # 2 mkdir, 2 writes, fsync of 2 files, 2 folders and the mark, and the 2 renames at least
    assert kills >= 11
    assert outcomes == sorted(outcomes)  # first always the earlier one, then always the later one


def test_interrupted_between_the_renames_the_whole_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rename = Path.rename

    def interrupt(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial"):
            raise KeyboardInterrupt
        return rename(path, target)

    save_folder(tmp_path / "last.ckpt", "earlier")
    monkeypatch.setattr(Path, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_folder(tmp_path / "last.ckpt", "later")
    (left,) = checkpoints_in(tmp_path)
    assert first_shard(left) == "later 0"


def test_a_killed_writer_s_whole_folder_counts_and_a_torn_one_does_not(tmp_path: Path):
    save_folder(tmp_path / "last.ckpt", "whole")
    (tmp_path / "last.ckpt").rename(tmp_path / "last.ckpt.partial")
    assert checkpoints_in(tmp_path) == [tmp_path / "last.ckpt.partial"]
    (tmp_path / "last.ckpt.partial" / END_MARK).unlink()
    assert checkpoints_in(tmp_path) == []


def shorten(folder: Path) -> None:
    (folder / "shards" / "1.pt").write_text("late")  # 4 bytes of 7


def lose(folder: Path) -> None:
    (folder / "shards" / "1.pt").unlink()


def unmark(folder: Path) -> None:
    (folder / END_MARK).unlink()


def scribble(folder: Path) -> None:
    (folder / END_MARK).write_text('{"shards/0.pt": ')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shorten, "shards/1.pt has 4 bytes instead of 7"),
        (lose, "shards/1.pt is missing"),
        (unmark, "the folder has no complete.json, which is written last"),
        (scribble, "complete.json is not JSON"),
    ],
)
def test_a_damaged_folder_is_refused_with_what_it_lacks(
    damage: Callable[[Path], None], said: str, tmp_path: Path
):
    save_folder(tmp_path / "last.ckpt", "later")
    damage(tmp_path / "last.ckpt")
    assert not is_whole(tmp_path / "last.ckpt")
    with pytest.raises(VagentError, match=f"last.ckpt is no whole checkpoint: {said}"):
        check_whole(tmp_path / "last.ckpt")


def test_a_full_disk_leaves_the_earlier_folder(tmp_path: Path):
    path = tmp_path / "last.ckpt"
    save_folder(path, "earlier")
    with (
        pytest.raises(VagentError, match=r"No space left on device\); it stopped after 2.0 MiB"),
        atomic_folder(path) as partial,
    ):
        (partial / "shard.pt").write_bytes(b"x" * 2**21)
        raise OSError(errno.ENOSPC, "No space left on device")
    assert first_shard(path) == "earlier 0"
    assert contents(tmp_path) == ["0.pt", "1.pt", END_MARK]


def test_a_rank_on_another_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def gather(mine: list[Any]) -> list[Any]:
        return [*mine, {"shards/7.pt": 7}] if isinstance(mine[0], dict) else mine

    monkeypatch.setattr(ranks, "gather", gather)
    with pytest.raises(VagentError, match=r"rank 0 does not see shards/7\.pt, which another rank"):
        save_folder(tmp_path / "last.ckpt", "later")
    assert contents(tmp_path) == []


class FolderStrategy(SingleDeviceStrategy):
    """Saves folders, as DeepSpeed does."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        write(filepath, checkpoint["content"])

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return {"content": first_shard(checkpoint_path)}


def test_a_strategy_with_folders_saves_whole_ones_and_loads_no_others(tmp_path: Path):
    strategy, path = FolderStrategy(), tmp_path / "last.ckpt"
    for _ in range(2):  # as for `fit` and then `test` with the same trainer
        save_whole_folders(strategy)
    strategy.save_checkpoint({"content": "later"}, path)
    assert contents(tmp_path) == ["0.pt", "1.pt", END_MARK]
    assert strategy.load_checkpoint(path) == {"content": "later 0"}
    unmark(path)
    with pytest.raises(VagentError, match="no whole checkpoint"):
        strategy.load_checkpoint(path)


def test_a_folder_is_not_saved_to_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    strategy = FolderStrategy()
    save_whole_folders(strategy)
    with pytest.raises(ConfigError, match=r"s3://bucket/last.ckpt would be a folder"):
        strategy.save_checkpoint({"content": "later"}, "s3://bucket/last.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_checkpoint_of_a_single_process(tmp_path: Path):
    with pytest.raises(VagentError, match=r"as DeepSpeed and FSDP2 write it; set trainer.strategy"):
        AtomicCheckpointIO().load_checkpoint(tmp_path)
