"""Writing checkpoints so that an interrupted write leaves no broken file."""

from __future__ import annotations

import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from vagentrl.errors import VagentError


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a file beside the target, then renames it: no checkpoint is ever half-written."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        if "://" in str(path) or storage_options is not None:  # not a local file
            return super().save_checkpoint(checkpoint, path, storage_options)
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        try:
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except (OSError, RuntimeError) as error:
            why: BaseException = error
            while why.__context__ is not None:  # torch wraps the cause in errors of its own
                why = why.__context__
            written = partial.stat().st_size if partial.exists() else 0
            raise VagentError(
                f"the checkpoint {target} could not be written ({why}); it stopped after "
                f"{written / 2**20:.1f} MiB. Earlier checkpoints in {target.parent} are untouched: "
                "make room, then resume with --ckpt_path"
            ) from error
        finally:
            partial.unlink(missing_ok=True)

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return super().load_checkpoint(path, *args, **kwargs)
        except UNREADABLE as error:
            raise unreadable(path, error) from error


UNREADABLE = (OSError, EOFError, RuntimeError, UnpicklingError)
"""The errors that torch raises when a file is no checkpoint."""


def unreadable(path: str | Path, error: Exception) -> VagentError:
    """Convert torch's error about a checkpoint file to a `VagentError`."""
    why = str(error).strip().splitlines()[0]
    return VagentError(
        f"{path} cannot be read as a checkpoint ({type(error).__name__}: {why}); give one "
        "that ModelCheckpoint saved, such as checkpoints/last.ckpt in a run's folder"
    )
