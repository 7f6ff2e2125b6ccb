"""Writing checkpoints so that an interrupted write leaves nothing that looks like one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO
from zipfile import is_zipfile

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import Strategy

from vagentrl import ranks
from vagentrl.errors import ConfigError, VagentError
from vagentrl.modules.background_write import BackgroundWrite, background_wanted

PARTIAL = ".partial"
"""Suffix of what is being written."""
REPLACED = ".replaced"
"""Suffix of an earlier folder while a new one takes its place."""
END_MARK = "complete.json"
"""The file that is written last to a folder: the sizes of all other files, in bytes, by name."""
DEEPSPEED_FILE = "checkpoint/mp_rank_00_model_states.pt"
"""Where a folder of DeepSpeed (stages 1 and 2) has everything but the optimizer."""
SHARDED_FILE = "meta.pt"
"""Where a folder of FSDP2 has everything but weights and optimizer."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a file beside the target, then renames it: no checkpoint is ever half-written.

    Inside `background_write.in_background` the file is written by a thread. Everything else here
    waits for that thread first, so that nobody meets a checkpoint that is still being written.

    Attributes:
        writing: The write that is under way in the background. A strategy whose checkpoints are
            folders uses it too.
    """

    def __init__(self) -> None:
        self.writing = BackgroundWrite()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        self.writing.wait()
        if _is_remote(path) or storage_options is not None:
            return super().save_checkpoint(checkpoint, path, storage_options)
        if background_wanted():
            copy = BytesIO()
            torch.save(checkpoint, copy)  # the thread sees no weight that training could change
            self.writing.start(
                lambda: _write(Path(path), lambda file: file.write(copy.getbuffer()))
            )
        else:
            _write(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.writing.wait()
        if Path(path).is_dir():
            raise VagentError(
                f"{path} is a folder, as DeepSpeed and FSDP2 write it; set trainer.strategy as in "
                "the run that saved it, or write it as a model with `vagentrl export`"
            )
        try:
            return super().load_checkpoint(path, *args, **kwargs)
        except UNREADABLE as error:
            raise unreadable(path, error) from error

    def remove_checkpoint(self, path: str | Path) -> None:
        self.writing.wait()
        super().remove_checkpoint(path)

    def teardown(self) -> None:
        self.writing.wait()


def _write(target: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, force it onto the disk, and give it its name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except (OSError, RuntimeError) as error:
        raise _not_written(target, partial, error) from error
    finally:
        partial.unlink(missing_ok=True)


def writing_of(strategy: Strategy) -> BackgroundWrite | None:
    """What a strategy writes in the background; None if its checkpoints are not written by us."""
    io = strategy.checkpoint_io
    return io.writing if isinstance(io, AtomicCheckpointIO) else None


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A new folder beside ``path`` that takes its place when all ranks have written to it.

    All ranks enter and leave together, and all of them must see the same disk. An `END_MARK` is
    written when all files are on the disk, and only then is the folder renamed. So a process that
    dies at any moment leaves either the earlier folder or the new one, whole; if it dies between
    the two renames, the new one is whole under its ``.partial`` name. `is_whole` recognises both.

    ::

        with atomic_folder("checkpoints/last.ckpt") as folder:
            torch.save(shard, folder / f"rank_{ranks.rank()}.pt")

    Args:
        path: The final place; what is there is replaced.

    Yields:
        The folder to write to, which is empty.

    Raises:
        ConfigError: When the path is a URL.
        VagentError: When the folder cannot be written. A rank that fails within the block raises
            alone, while the others wait for it: its process must end.
    """
    if _is_remote(path):
        raise ConfigError(
            f"the checkpoint {path} would be a folder, as DeepSpeed and FSDP2 write it, and those "
            "are written to disks alone; give ModelCheckpoint a dirpath on a disk that all ranks "
            "see, and copy the folder from there"
        )
    target = Path(path)
    partial = target.with_name(target.name + PARTIAL)
    try:
        ranks.on_first(lambda: _make_empty(partial))
        yield partial
        ranks.wait_for_all()
        sizes: dict[str, int] = {}
        for seen in ranks.gather([_flush(partial)]):  # disks show others' new files late
            sizes |= {name: max(size, sizes.get(name, 0)) for name, size in seen.items()}
        ranks.on_first(lambda: _finish(partial, target, sizes))
    except BaseException as error:
        failure = _not_written(target, partial, error)
        if not is_whole(partial):  # a whole one may by now be all that is left
            shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError | RuntimeError):
            raise failure from error
        raise


def save_whole_folders(
    strategy: Strategy,
    start_write: Callable[[BackgroundWrite, str | Path, dict[str, Any]], None] | None = None,
) -> None:
    """Make a strategy whose checkpoints are folders write them by `atomic_folder`.

    It then also refuses to load a folder that is not whole.

    Args:
        strategy: The strategy.
        start_write: Copies a checkpoint, which it may change, and starts to write the copy to a
            path by `atomic_folder`; None if this strategy must write while training waits.
    """
    save, load = type(strategy).save_checkpoint, type(strategy).load_checkpoint

    def save_checkpoint(
        checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        path, writing = strategy.broadcast(filepath), writing_of(strategy)
        if writing is not None:
            writing.wait()
        if writing is not None and start_write is not None and background_wanted():
            start_write(writing, path, checkpoint)
            return
        with atomic_folder(path) as folder:
            save(strategy, checkpoint, folder, storage_options)

    def load_checkpoint(
        checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        path, writing = strategy.broadcast(checkpoint_path), writing_of(strategy)
        if writing is not None:
            writing.wait()
        check_whole(path)
        return load(strategy, path, weights_only)

    strategy.save_checkpoint, strategy.load_checkpoint = save_checkpoint, load_checkpoint


def checkpoints_in(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, in the order of their names.

    One that `atomic_folder` completed, but was killed before it gave it its final name, counts.
    """
    unnamed = [path for path in Path(folder).glob(f"*.ckpt{PARTIAL}") if path.is_dir()]
    return sorted([*Path(folder).glob("*.ckpt"), *filter(is_whole, unnamed)])


def state_file(checkpoint: Path) -> Path:
    """The file of a checkpoint, a file or a folder, with the states of loops and callbacks."""
    if not checkpoint.is_dir():
        return checkpoint
    deepspeed = checkpoint / DEEPSPEED_FILE
    return deepspeed if deepspeed.is_file() else checkpoint / SHARDED_FILE


def is_whole(path: str | Path) -> bool:
    """Whether a checkpoint, a file or a folder, was written to its end."""
    return flaw_of(path) is None


def check_whole(path: str | Path) -> None:
    """Refuse a checkpoint that was not written to its end.

    Raises:
        VagentError: When there is none, or a part of it is missing.
    """
    flaw = flaw_of(path)
    if flaw is not None:
        raise VagentError(
            f"{path} is no whole checkpoint: {flaw}. A run that is killed while it saves leaves "
            "such a one. Give an earlier one, or `--ckpt_path last` for the newest that is whole"
        )


def flaw_of(path: str | Path) -> str | None:
    """What a checkpoint, a file or a folder, lacks; None if it was written to its end."""
    path = Path(path)
    if not path.exists():
        return "there is nothing"
    if path.is_file():  # the index of a zip file comes last
        return None if is_zipfile(path) else "the file has no end"
    try:
        sizes = json.loads((path / END_MARK).read_text())
    except FileNotFoundError:
        return f"the folder has no {END_MARK}, which is written last"
    except ValueError:
        return f"{END_MARK} is not JSON"
    for name, size in sizes.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
    return None


def _make_empty(folder: Path) -> None:
    _remove(folder)  # a killed run may have left it
    folder.mkdir(parents=True)


def _flush(folder: Path) -> dict[str, int]:
    """Force a folder onto the disk; returns the sizes of its files, in bytes, by name."""
    sizes: dict[str, int] = {}
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path.is_file():
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    return sizes


def _finish(partial: Path, target: Path, sizes: dict[str, int]) -> None:
    """Write the end mark, then put the folder in its place."""
    for name in sizes:
        if not (partial / name).is_file():
            raise FileNotFoundError(
                f"rank 0 does not see {name}, which another rank has written; all ranks need the "
                "same disk"
            )
    with (partial / END_MARK).open("w") as file:
        json.dump(sizes, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(partial, target)


def put_in_place(partial: Path, target: Path) -> None:
    """Give a whole folder its final name, and remove what had it."""
    replaced = target.with_name(target.name + REPLACED)
    _remove(replaced)
    if target.exists():
        target.rename(replaced)  # a folder cannot be renamed onto another one
    partial.rename(target)
    _remove(replaced)


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_remote(path: str | Path) -> bool:
    return "://" in str(path)


def _not_written(target: Path, partial: Path, error: BaseException) -> VagentError:
    why: BaseException = error
    while why.__context__ is not None:  # torch wraps the cause in errors of its own
        why = why.__context__
    files = [partial, *partial.rglob("*")]
    written = sum(file.stat().st_size for file in files if file.is_file())
    return VagentError(
        f"the checkpoint {target} could not be written ({why}); it stopped after "
        f"{written / 2**20:.1f} MiB. Earlier checkpoints in {target.parent} are untouched: if the "
        "disk is full make room, then resume with --ckpt_path"
    )


UNREADABLE = (OSError, EOFError, RuntimeError, UnpicklingError)
"""The errors that torch raises when a file is no checkpoint."""


def unreadable(path: str | Path, error: Exception) -> VagentError:
    """Convert torch's error about a checkpoint file to a `VagentError`."""
    why = str(error).strip().splitlines()[0]
    return VagentError(
        f"{path} cannot be read as a checkpoint ({type(error).__name__}: {why}); give one "
        "that ModelCheckpoint saved, such as checkpoints/last.ckpt in a run's folder"
    )
