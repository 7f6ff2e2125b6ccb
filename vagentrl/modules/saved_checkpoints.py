"""Finding the newest checkpoint in a number of folders, and what it says of its run."""

from __future__ import annotations

import glob
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from vagentrl.modules.checkpoint_io import checkpoints_in, flaw_of, state_file

log = logging.getLogger(__name__)


def newest_checkpoints(places: Iterable[str]) -> Iterator[Path]:
    """Whole checkpoints, the last saved first; those that are not whole are named and passed over.

    Args:
        places: Folders to look in, with ``*`` for any name.
    """
    folders = [folder for place in places for folder in glob.glob(place)]
    found = [path for folder in folders for path in checkpoints_in(folder)]
    for path in sorted(found, key=saved_at, reverse=True):
        flaw = flaw_of(path)
        if flaw is None:
            yield path
        else:
            log.warning(
                "%s is not whole, as after a crash (%s); an older checkpoint is looked for",
                path,
                flaw,
            )


def newest_checkpoint(places: Iterable[str], since: float = 0.0) -> Path | None:
    """The whole checkpoint that was saved last, if it was saved after a time (by `time.time`)."""
    newest = next(newest_checkpoints(places), None)
    return None if newest is None or saved_at(newest) < since else newest


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint holds besides weights; weights are memory-mapped if they are in the file.

    Raises:
        UnpicklingError: When it holds objects that could run code.
    """
    return torch.load(state_file(checkpoint), map_location="cpu", mmap=True, weights_only=True)


def saved_at(path: Path) -> float:
    """When a checkpoint was saved, by `time.time`."""
    files = path.rglob("*") if path.is_dir() else [path]
    return max((file.stat().st_mtime for file in files), default=0.0)


def saved_when(path: Path) -> str:
    """When a checkpoint was saved, in words."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved_at(path)))
