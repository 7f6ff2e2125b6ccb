"""Finding what earlier runs of a configuration have saved."""

from __future__ import annotations

import glob
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from vagentrl.modules.checkpoint_io import checkpoints_in, flaw_of

log = logging.getLogger(__name__)

_DEEPSPEED_STATE = "checkpoint/*model_states.pt"
_SHARDED_STATE = "meta.pt"


def places_of_configuration(trainer: Trainer) -> list[str]:
    """Where all runs of this trainer's configuration save checkpoints, with ``*`` for any name.

    The places are those that `ModelCheckpoint` chooses for a new run.
    """
    places = [_place_of_runs(trainer)] if not places_of_run(trainer) else []
    return [*places_of_run(trainer), *places]


def places_of_run(trainer: Trainer) -> list[str]:
    """Where the run of this trainer saves checkpoints; known once it has begun."""
    return [glob.escape(str(folder)) for folder in folders_of_run(trainer)]


def folders_of_run(trainer: Trainer) -> list[Path]:
    """The folders to which the run of this trainer saves checkpoints; known once it has begun."""
    return [
        Path(callback.dirpath)
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint) and callback.dirpath
    ]


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
    file = checkpoint
    if checkpoint.is_dir():
        file = next(iter(sorted(checkpoint.glob(_DEEPSPEED_STATE))), checkpoint / _SHARDED_STATE)
    return torch.load(file, map_location="cpu", mmap=True, weights_only=True)


def saved_at(path: Path) -> float:
    """When a checkpoint was saved, by `time.time`."""
    files = path.rglob("*") if path.is_dir() else [path]
    return max((file.stat().st_mtime for file in files), default=0.0)


def saved_when(path: Path) -> str:
    """When a checkpoint was saved, in words."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved_at(path)))


def _place_of_runs(trainer: Trainer) -> str:
    if not trainer.loggers:
        return f"{glob.escape(str(trainer.default_root_dir))}/checkpoints"
    logger = trainer.loggers[0]
    runs = Path(logger.save_dir or trainer.default_root_dir) / str(logger.name)
    version = "*"
    if isinstance(logger, TensorBoardLogger) and logger._version is not None:  # as configured
        given = logger._version
        version = glob.escape(given) if isinstance(given, str) else f"version_{given}"
    return f"{glob.escape(str(runs))}/{version}/checkpoints"
