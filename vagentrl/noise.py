"""What is said while a run goes on, and what is left unsaid."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections import Counter

from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

WARNINGS = (
    r"LightningCLI's args parameter",  # the arguments are the same: the dispatcher read them first
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's own use
    r"Found \d+ module\(s\) in eval mode",  # on purpose, see `load_model`
    r"The dirpath has changed from",  # a resumed run may have a folder of its own
    r"Checkpoint directory .* exists and is not empty",  # of the run that is resumed
    r"Since DeepSpeed handles gradient clipping internally",  # as `AgentModule` knows
    r"FSDP2-wrapped module .* returned a view tensor",  # nothing writes to values in place
    r"torch.distributed is disabled, unavailable or uninitialized",  # one process reads shards
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
    """Hide what nobody can act upon, and say a repeated warning seldom, from now on.

    The warnings are those that no handler of the program takes: its own logging stays as it is.
    """
    logging.lastResort = SeldomWarnings()
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for module in ("utilities.rank_zero", "trainer.connectors.signal_connector"):
        logging.getLogger(f"lightning.pytorch.{module}").addFilter(_is_news)
    disable_progress_bar()


def be_quiet() -> None:
    """Say only warnings and errors from now on."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


class SeldomWarnings(logging.Handler):
    """Writes a warning to stderr the 1st, 10th, 100th … time.

    An iteration tends to repeat the warning of the one before, with other numbers, so two warnings
    are the same if only their numbers differ. Errors are always written, and by every rank;
    warnings by rank 0 only.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._times: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno < logging.ERROR:
            if rank_zero_only.rank:  # pyright: ignore[reportFunctionMemberAccess]
                return
            without_numbers = re.sub(r"\d[\d.]*(e[-+]?\d+)?", "#", f"{record.name}: {text}")
            self._times[without_numbers] += 1
            times = self._times[without_numbers]
            if str(times).strip("0") != "1":
                return
            if times > 1:
                text += f" (a warning like this one for the {times}th time)"
        tqdm.write(text, file=sys.stderr)  # above a progress bar, if there is one


def _is_news(record: logging.LogRecord) -> bool:
    return not any(message in record.getMessage() for message in MESSAGES)
