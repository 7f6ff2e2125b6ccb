"""Which checkpoint ``--ckpt_path`` means: a path, or ``last`` or ``best`` of the earlier runs."""

from __future__ import annotations

import glob
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from vagentrl import ranks
from vagentrl.errors import ConfigError
from vagentrl.modules.checkpoint_io import checkpoints_in, flaw_of, is_whole

log = logging.getLogger(__name__)

_DEEPSPEED_STATE = "checkpoint/*model_states.pt"
_SHARDED_STATE = "meta.pt"


def find_checkpoint(wanted: str, trainer: Trainer) -> str:
    """The path of the checkpoint that is meant.

    Args:
        wanted: A path, ``last`` or ``best``.
        trainer: Its loggers and callbacks say where this configuration's runs are.

    Raises:
        ConfigError: When there is no such checkpoint, or it is not whole.
    """
    if wanted == "hpc":
        raise ConfigError(
            "--ckpt_path hpc: jobs are not requeued from within an iteration; give `last`, `best` "
            "or a path"
        )
    if wanted not in ("last", "best"):
        return _check_path(wanted)
    places = _places(trainer)
    newest = newest_checkpoint(places)
    if newest is None:
        raise ConfigError(
            f"--ckpt_path {wanted}: there is no whole checkpoint in {' or '.join(places)}, where "
            "trainer.logger and ModelCheckpoint put those of this configuration's runs. Give a "
            "path, set the logger's save_dir and name as in the run that is meant, or leave "
            "--ckpt_path out to start from model.policy"
        )
    path = newest if wanted == "last" else _best(newest)
    saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_saved_at(path)))
    rank_zero_info(f"--ckpt_path {wanted} is {path}, saved {saved}")
    return str(path)


def newest_checkpoint(places: Iterable[str], since: float = 0.0) -> Path | None:
    """The checkpoint that was saved last; one that is not whole is named and passed over.

    Args:
        places: Folders to look in, with ``*`` for any name.
        since: Only those that were saved after this time.
    """
    folders = [folder for place in places for folder in glob.glob(place)]
    found = [path for folder in folders for path in checkpoints_in(folder)]
    for path in sorted(found, key=_saved_at, reverse=True):
        if _saved_at(path) < since:
            break
        if is_whole(path):
            return path
        log.warning(
            "%s is not whole, as after a crash (%s); an older checkpoint is looked for",
            path,
            flaw_of(path),
        )
    return None


def places_of_run(trainer: Trainer) -> list[str]:
    """Where the run of this trainer saves checkpoints; known once it has begun."""
    callbacks = trainer.checkpoint_callbacks
    return [
        glob.escape(str(callback.dirpath))
        for callback in callbacks
        if isinstance(callback, ModelCheckpoint) and callback.dirpath
    ]


class SameOnAllRanks(Callback):
    """Refuses a run whose ranks found different checkpoints, on disks of their own for example."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        found = ranks.gather([str(trainer.ckpt_path)])
        if len(set(found)) > 1:
            raise ConfigError(
                f"--ckpt_path: the ranks found different checkpoints ({', '.join(found)}); give "
                "the path of one that all of them can read"
            )


def _places(trainer: Trainer) -> list[str]:
    """Where runs of this configuration save, as `ModelCheckpoint` chooses it for a new run."""
    if places := places_of_run(trainer):
        return places
    if not trainer.loggers:
        return [f"{glob.escape(str(trainer.default_root_dir))}/checkpoints"]
    logger = trainer.loggers[0]
    runs = Path(logger.save_dir or trainer.default_root_dir) / str(logger.name)
    return [f"{glob.escape(str(runs))}/*/checkpoints"]


def _check_path(wanted: str) -> str:
    path = Path(wanted)
    if ":" in wanted:  # not a file of this machine
        return wanted
    if not path.exists():
        folder = path.parent
        names = [path.name for path in checkpoints_in(folder)]
        raise ConfigError(
            f"--ckpt_path: there is no checkpoint {wanted}; {folder} holds "
            f"{', '.join(names) or 'none'}. `last` is the newest of this configuration's runs, "
            "`best` the best"
        )
    flaw = flaw_of(path)
    if flaw is not None:
        inside = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.ckpt"))
        held = f"; it holds {', '.join(inside)}" if inside else ""
        raise ConfigError(
            f"--ckpt_path: {wanted} cannot be read as a checkpoint: {flaw}{held}. Give a whole "
            "one that ModelCheckpoint saved, such as checkpoints/last.ckpt in a run's folder"
        )
    return wanted


def _best(newest: Path) -> Path:
    """What the newest checkpoint of a run knows as the best one so far."""
    monitored = {
        state["best_model_path"]: state
        for state in _callback_states(newest)
        if state.get("monitor") and state.get("best_model_path")
    }
    if not monitored:
        raise ConfigError(
            f"--ckpt_path best: the run that saved {newest} compared no checkpoints by a monitor. "
            "Set ModelCheckpoint's monitor (to val/success_rate, with mode: max) for the next run; "
            "now give a path, or `last`"
        )
    if len(monitored) > 1:
        seen = ", ".join(f"{path} by {state['monitor']}" for path, state in monitored.items())
        raise ConfigError(f"--ckpt_path best may mean several: {seen}. Give the path of one")
    (recorded,) = monitored
    for path in (Path(recorded), newest.parent / Path(recorded).name):  # runs may be moved
        if path.exists() and is_whole(path):
            return path
    raise ConfigError(
        f"--ckpt_path best: {recorded}, which {newest} knows as the best one, is not there or not "
        "whole; give a path, or `last`"
    )


def _callback_states(checkpoint: Path) -> Sequence[dict[str, Any]]:
    file = checkpoint
    if checkpoint.is_dir():
        file = next(iter(sorted(checkpoint.glob(_DEEPSPEED_STATE))), checkpoint / _SHARDED_STATE)
    try:
        state = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except UnpicklingError as error:
        raise ConfigError(
            f"--ckpt_path best: {file} holds more than tensors and plain values, and says which "
            "checkpoint is best only to code that trusts it; give a path, or `last`"
        ) from error
    return list(state.get("callbacks", {}).values())


def _saved_at(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return max((file.stat().st_mtime for file in files), default=0.0)
