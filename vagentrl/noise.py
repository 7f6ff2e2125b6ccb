"""What libraries say in every run and nobody can act upon."""

from __future__ import annotations

import logging
import warnings

from transformers.utils.logging import disable_progress_bar

WARNINGS = (
    r"LightningCLI's args parameter",  # the arguments are the same: the dispatcher read them first
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's own use
    r"Found \d+ module\(s\) in eval mode",  # on purpose, see `load_model`
    r"The dirpath has changed from",  # a resumed run has a folder of its own
    r"Since DeepSpeed handles gradient clipping internally",  # as `AgentModule` knows
    r"It is recommended to use `self.log\(",  # all ranks log the same, but for the time it took
    r"You have overridden `transfer_batch_to_device` in `LightningModule`",  # on purpose
)
MESSAGES = (
    "litlogger",
    "litmodels",
    "`Trainer.fit` stopped: `max_epochs=",
    "Detected KeyboardInterrupt",  # the command says how to resume
    "Received SIGTERM",
)


def silence_noise() -> None:
    """Hide these warnings, messages and progress bars from now on."""
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for module in ("utilities.rank_zero", "trainer.connectors.signal_connector"):
        logging.getLogger(f"lightning.pytorch.{module}").addFilter(_is_news)
    disable_progress_bar()


def _is_news(record: logging.LogRecord) -> bool:
    return not any(message in record.getMessage() for message in MESSAGES)
