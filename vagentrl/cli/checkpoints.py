"""Which checkpoint ``--ckpt_path`` means: a path, or ``last`` or ``best`` of the earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from vagentrl import ranks
from vagentrl.errors import ConfigError
from vagentrl.modules.checkpoint_io import checkpoints_in, flaw_of, is_whole
from vagentrl.modules.run_folders import places_of_configuration
from vagentrl.modules.saved_checkpoints import newest_checkpoint, read_state, saved_when


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
    places = places_of_configuration(trainer)
    newest = newest_checkpoint(places)
    if newest is None:
        raise ConfigError(
            f"--ckpt_path {wanted}: there is no whole checkpoint in {' or '.join(places)}, where "
            "trainer.logger and ModelCheckpoint put those of this configuration's runs. Give a "
            "path, set the logger's save_dir and name as in the run that is meant, or leave "
            "--ckpt_path out to start from model.policy"
        )
    path = newest if wanted == "last" else _best(newest)
    rank_zero_info(f"--ckpt_path {wanted} is {path}, saved {saved_when(path)}")
    return str(path)


class SameOnAllRanks(Callback):
    """Refuses a run whose ranks found different checkpoints, on disks of their own for example."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        found = ranks.gather([str(trainer.ckpt_path)])
        if len(set(found)) > 1:
            raise ConfigError(
                f"--ckpt_path: the ranks found different checkpoints ({', '.join(found)}); give "
                "the path of one that all of them can read"
            )


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
    try:
        state = read_state(checkpoint)
    except UnpicklingError as error:
        raise ConfigError(
            f"--ckpt_path best: {checkpoint} holds more than tensors and plain values, and says "
            "which checkpoint is best only to code that trusts it; give a path, or `last`"
        ) from error
    return list(state.get("callbacks", {}).values())
