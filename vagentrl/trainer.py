"""A Lightning trainer as the command line makes it, for notebooks and scripts too."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from lightning import Callback, Trainer
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info

from vagentrl.callbacks import (
    Boards,
    CheckpointFolders,
    EngineAgreement,
    EvaluateAtEnds,
    IterationProgress,
    RankWatch,
    RunSummary,
)
from vagentrl.errors import ConfigError, VagentError
from vagentrl.modules.checkpoint_io import AtomicCheckpointIO
from vagentrl.modules.checks import check_resumable
from vagentrl.modules.run_folders import places_of_configuration
from vagentrl.modules.saved_checkpoints import newest_checkpoints, read_state, saved_when
from vagentrl.modules.trainer_checks import NEEDED, check_asked
from vagentrl.noise import silence_noise

log = logging.getLogger(__name__)

TRAINER_DEFAULTS: dict[str, Any] = {
    "default_root_dir": "runs",
    "max_epochs": -1,  # refused by `fit`, where Lightning would train for 1000 epochs
    "log_every_n_steps": 1,
    "enable_model_summary": False,
} | {name: needed.value for name, needed in NEEDED.items()}
"""Arguments of Lightning's trainer where ours differ."""


def make_trainer(
    *,
    callbacks: Callback | Sequence[Callback] | None = None,
    plugins: Any = None,
    logger: Logger | Sequence[Logger] | bool = True,
    **trainer_arguments: Any,
) -> Trainer:
    """A Lightning trainer with the defaults and the callbacks of ``vagentrl fit``.

    Args:
        callbacks: Callbacks to add to the default ones (`with_default_callbacks`); one of the same
            class takes the default's place.
        plugins: Plugins to add; without a ``CheckpointIO`` among them, checkpoints are written by
            `AtomicCheckpointIO`.
        logger: True logs to TensorBoard in ``default_root_dir``; False logs nothing.
        **trainer_arguments: Arguments of ``lightning.Trainer``. ``max_epochs`` is the number of
            iterations. What is not given is as in `TRAINER_DEFAULTS`.

    Raises:
        ConfigError: When an iteration could not work with an argument, or Lightning refuses it.
    """
    silence_noise()
    arguments = TRAINER_DEFAULTS | trainer_arguments
    check_asked(arguments)
    if logger is True:
        logger = TensorBoardLogger(arguments["default_root_dir"], default_hp_metric=False)
    try:
        return Trainer(
            callbacks=with_default_callbacks(
                callbacks, progress_bar=arguments.get("enable_progress_bar") is not False
            ),
            plugins=with_default_plugins(plugins),
            logger=logger,
            **arguments,
        )
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise refused_by_lightning(error) from error


def resume(trainer: Trainer) -> str | None:
    """Have a trainer go on with the newest run of its configuration.

    The run is the one that saved last of those whose folder follows from the trainer's first
    logger, or from the ``dirpath`` of its `ModelCheckpoint`. Its newest checkpoint from the end of
    an iteration is taken; those that are torn, or hold weights alone, are named and passed over.
    TensorBoard's logger goes on in the run's folder: its curve continues, without what was logged
    after the checkpoint. ::

        trainer.fit(agent, data, ckpt_path=resume(trainer))

    Args:
        trainer: A trainer that has not begun.

    Returns:
        The checkpoint, for ``trainer.fit``; None if there is none, so that a run starts afresh.
    """
    places = places_of_configuration(trainer)
    for checkpoint in newest_checkpoints(places):
        try:
            state = read_state(checkpoint)
            check_resumable(state)
        except (UnpicklingError, VagentError) as error:
            log.warning("%s is passed over: %s", checkpoint, error)
            continue
        _go_on_logging(trainer, checkpoint, state)
        rank_zero_info(
            f"resume: the run goes on after iteration {state['iteration']} with {checkpoint}, "
            f"saved {saved_when(checkpoint)}"
        )
        return str(checkpoint)
    rank_zero_info(
        f"resume: there is no checkpoint to go on from in {' or '.join(places)}; the run starts "
        "from the beginning"
    )
    return None


def _go_on_logging(trainer: Trainer, checkpoint: Path, state: Mapping[str, Any]) -> None:
    """Put the loggers of a trainer into the folder of the run that saved a checkpoint."""
    for logger in trainer.loggers:
        if not isinstance(logger, TensorBoardLogger):
            log.warning(
                "%s begins a new curve; to continue one give it the id of the earlier run",
                type(logger).__name__,
            )
            continue
        runs = Path(logger.root_dir)
        for place in (checkpoint, Path(state.get("run_folder", checkpoint))):
            if place.is_relative_to(runs):
                logger._version = place.relative_to(runs).parts[0]
                logger._kwargs["purge_step"] = state["iteration"] + 1
                break


def with_default_callbacks(
    given: Callback | Sequence[Callback] | None, *, progress_bar: bool
) -> list[Callback]:
    """The given callbacks and those that every run has, unless one of the same class is given.

    Every run is evaluated before the first update and after the last (`EvaluateAtEnds`), its
    engine is compared with its actor (`EngineAgreement`), its loggers get boards, histograms and
    episodes (`Boards`), it has its folders of checkpoints to itself (`CheckpointFolders`), it ends
    with a summary (`RunSummary`), soon after one of its processes has died (`RankWatch`), and shows
    where it is (`IterationProgress`, unless a progress bar is given).
    """
    given = _as_list(given)
    for callback in given:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"trainer.callbacks holds {callback!r}, which is no callback; give an instance of "
                "a lightning.Callback, for example KLControl(coefficient=0.01)"
            )
    wanted: list[Callback] = [
        EvaluateAtEnds(),
        EngineAgreement(),
        Boards(),
        CheckpointFolders(),
        RunSummary(),
        RankWatch(),
    ]
    if progress_bar and not any(isinstance(callback, ProgressBar) for callback in given):
        wanted.insert(0, IterationProgress())
    classes = {type(callback) for callback in given}
    return given + [callback for callback in wanted if type(callback) not in classes]


def with_default_plugins(given: Any) -> list[Any]:
    """The given plugins, and one that writes a checkpoint as a whole or not at all."""
    given = _as_list(given)
    saves = any(isinstance(plugin, CheckpointIO) for plugin in given)
    return given if saves else [*given, AtomicCheckpointIO()]


def _as_list(given: Any) -> list[Any]:
    """What Lightning takes as None, as one thing or as several, as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]


def refused_by_lightning(error: Exception) -> ConfigError:
    """Lightning's complaint about its trainer's arguments as an error of ours."""
    return ConfigError(f"Lightning's trainer refuses its settings: {error}")
