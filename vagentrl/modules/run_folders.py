"""The folders that runs write to, and those in which they save checkpoints."""

from __future__ import annotations

import glob
from pathlib import Path

from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger, TensorBoardLogger


def run_folder(trainer: Trainer) -> Path:
    """The folder that a run writes to. All ranks must call this together: rank 0 broadcasts it.

    With a logger that keeps no folder for each run, as that of Weights & Biases or MLflow, the
    folder is where `ModelCheckpoint` puts this run's checkpoints: ``save_dir/name/version``.
    """
    logger = trainer.loggers[0] if trainer.loggers else None
    folder = Path(trainer.log_dir or trainer.default_root_dir)
    if logger is not None and not logger.log_dir and logger.version is not None:
        folder = _parent_of_runs(trainer, logger) / _folder_name(logger.version)
    return Path(trainer.strategy.broadcast(str(folder)))


def places_of_configuration(trainer: Trainer) -> list[str]:
    """Where all runs of this trainer's configuration save checkpoints, with ``*`` for any name.

    The places are those that `ModelCheckpoint` is given, or that it chooses for a new run.
    """
    if places := places_of_run(trainer):
        return places
    if not trainer.loggers:
        return [f"{glob.escape(str(trainer.default_root_dir))}/checkpoints"]
    logger, version = trainer.loggers[0], "*"
    if isinstance(logger, TensorBoardLogger) and logger._version is not None:  # as configured
        version = glob.escape(_folder_name(logger._version))
    return [f"{glob.escape(str(_parent_of_runs(trainer, logger)))}/{version}/checkpoints"]


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


def _parent_of_runs(trainer: Trainer, logger: Logger) -> Path:
    return Path(logger.save_dir or trainer.default_root_dir) / str(logger.name)


def _folder_name(version: int | str) -> str:
    return version if isinstance(version, str) else f"version_{version}"
