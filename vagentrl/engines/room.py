"""Whether there is room for weights in shared memory or in a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from vagentrl.errors import EngineError

SHARED_MEMORY = "/dev/shm"
"""Folder whose files are memory. A container often has only 64 MiB of it."""


def shared_memory() -> str | None:
    """Return the folder of shared memory; None where there is none."""
    return SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None


def place_with_room(folders: Sequence[str], size: int, what: str) -> str:
    """Return the first of these folders that has room.

    Args:
        folders: The folders, best first.
        size: Bytes that will be written.
        what: Name of what will be written, for the error.

    Raises:
        EngineError: When none has room.
    """
    free = {folder: shutil.disk_usage(folder).free for folder in folders}
    for folder, room in free.items():
        if room >= size:
            return folder
    seen = ", ".join(f"{folder} has {room / 2**30:.2f}" for folder, room in free.items())
    raise EngineError(
        f"{what} takes {size / 2**30:.2f} GiB, and {seen} GiB free; delete old files there, set "
        "the engine's `folder` to another one if it has that setting, or give a container more "
        "shared memory (docker run --shm-size=SIZE, or --ipc=host)"
    )
