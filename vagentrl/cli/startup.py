"""What every command does first: load the plug-ins, silence what nobody can act upon."""

from __future__ import annotations

import logging
import warnings
from importlib.metadata import entry_points

from transformers.utils.logging import disable_progress_bar

from vagentrl import chat, engines

# What libraries say on every run and nobody can act upon.
_IDLE_WARNINGS = (
    r"LightningCLI's args parameter",  # they are the same ones: the dispatcher read them first
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's own use
    r"Found \d+ module\(s\) in eval mode",  # on purpose, see `load_model`
    r"The dirpath has changed from",  # a resumed run has a folder of its own
    r"Since DeepSpeed handles gradient clipping internally",  # as `AgentModule` knows
    r"It is recommended to use `self.log\(",  # all ranks log the same, but for the time it took
    r"You have overridden `transfer_batch_to_device` in `LightningModule`",  # on purpose
)
_IDLE_MESSAGES = (
    "litlogger",
    "litmodels",
    "`Trainer.fit` stopped: `max_epochs=",
    "Detected KeyboardInterrupt",  # the command says how to resume
    "Received SIGTERM",
)


def load_plugins() -> None:
    """Import what is there to choose from, so that its classes can be named briefly."""
    for package in (engines, chat):
        for name in package.__all__:
            getattr(package, name)
    for plugin in entry_points(group="vagentrl.plugins"):
        plugin.load()


def silence_noise() -> None:
    for message in _IDLE_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for module in ("utilities.rank_zero", "trainer.connectors.signal_connector"):
        logging.getLogger(f"lightning.pytorch.{module}").addFilter(_is_news)
    disable_progress_bar()


def _is_news(record: logging.LogRecord) -> bool:
    return not any(message in record.getMessage() for message in _IDLE_MESSAGES)
