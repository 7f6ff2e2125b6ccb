"""Keeps a run's folders of checkpoints to one process, and free of what killed runs left there."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import socket
from io import TextIOWrapper
from pathlib import Path

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from vagentrl import ranks
from vagentrl.errors import VagentError
from vagentrl.modules.checkpoint_io import PARTIAL, REPLACED, is_whole, put_in_place
from vagentrl.modules.run_folders import folders_of_run

log = logging.getLogger(__name__)

LOCK = "in_use.lock"
"""The file in a folder of checkpoints that the running process holds locked."""


class CheckpointFolders(Callback):
    """Locks the folders to which a run saves, and removes what killed runs left half-written.

    A folder stays locked (by ``fcntl.lockf``, on rank 0) until the process ends, however it ends.
    Nothing is removed from a folder that another process has locked, and a run that would resume
    in such a folder is refused: two processes would continue one run.
    """

    def __init__(self) -> None:
        self._locks: list[TextIOWrapper] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:  # pyright: ignore
            ranks.on_first(lambda: self._claim(trainer))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        while self._locks:
            lock = self._locks.pop()
            Path(lock.name).unlink(missing_ok=True)
            lock.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        try:
            trainer.strategy.checkpoint_io.teardown()  # a write may be under way: it needs the lock
        except VagentError as error:
            log.error("%s", error)  # the exception that ends the run is another one
        self.teardown(trainer, pl_module, "")

    def _claim(self, trainer: Trainer) -> None:
        resumed = None if trainer.ckpt_path is None else Path(str(trainer.ckpt_path)).parent
        for folder in dict.fromkeys(folders_of_run(trainer)):
            if "://" in str(folder):
                continue
            folder.mkdir(parents=True, exist_ok=True)
            lock = _lock(folder / LOCK)
            if lock is not None:
                self._locks.append(lock)
                tidy(folder)
            elif resumed is not None and resumed.resolve() == folder.resolve():
                raise VagentError(
                    f"{folder} is in use by {(folder / LOCK).read_text().strip() or 'a process'}, "
                    "which still trains the run that is to be resumed; end that one first, or "
                    "leave --resume and --ckpt_path out to begin another run"
                )


def tidy(folder: Path) -> None:
    """Remove what killed runs left in a folder of checkpoints; no run may be saving there.

    A folder that was complete, but not yet renamed, gets its final name: it is the newest.
    """
    for partial in folder.glob(f"*.ckpt{PARTIAL}"):
        if partial.is_dir() and is_whole(partial):
            final = partial.with_name(partial.name.removesuffix(PARTIAL))
            put_in_place(partial, final)
            rank_zero_info(f"{final} was saved by a run that was killed before it could name it")
    for suffix in (PARTIAL, REPLACED):
        for left in folder.glob(f"*.ckpt{suffix}"):
            rank_zero_info(f"{left} is removed: a killed run left it half-written")
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()


def _lock(path: Path) -> TextIOWrapper | None:
    """Lock a file until it is closed or the process ends; None if it cannot be had.

    Without locks on the file system there is none: then nobody knows who else uses the folder.
    """
    file = path.open("a+")  # does not empty the file of the process that has the lock
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.ENOLCK, errno.EOPNOTSUPP):
            return None
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file
