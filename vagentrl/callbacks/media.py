"""Pictures, texts and histograms for the loggers of a trainer, as far as each takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Generic, TypeVar

import numpy as np
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info
from PIL import Image

from vagentrl.callbacks.json_log import JSONLinesLogger

BINS = 64
"""The number of bars of a histogram."""

L = TypeVar("L", bound=Logger)


class MediaWriter(ABC, Generic[L]):
    """What can be shown beside scalars, written by the methods of one kind of logger.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: L) -> None:
        self.logger = logger

    @abstractmethod
    def image(self, name: str, image: Image.Image, step: int) -> None:
        """Write a picture."""

    @abstractmethod
    def text(self, name: str, text: str, step: int) -> None:
        """Write a text in Markdown."""

    @abstractmethod
    def histogram(self, name: str, values: np.ndarray, step: int) -> None:
        """Write the distribution of finite values ``(N,)``."""


class _TensorBoard(MediaWriter[TensorBoardLogger]):
    def image(self, name: str, image: Image.Image, step: int) -> None:
        self.logger.experiment.add_image(name, np.asarray(image), step, dataformats="HWC")

    def text(self, name: str, text: str, step: int) -> None:
        self.logger.experiment.add_text(name, text, step)

    def histogram(self, name: str, values: np.ndarray, step: int) -> None:
        # Equally wide bins: the default ones, each a tenth wider than the one before, would show
        # all ratios near 1 in two bars.
        self.logger.experiment.add_histogram(name, values, step, bins=BINS)  # pyright: ignore


class _WeightsAndBiases(MediaWriter[WandbLogger]):
    def image(self, name: str, image: Image.Image, step: int) -> None:
        self.logger.log_image(name, [image], step)

    def text(self, name: str, text: str, step: int) -> None:
        self.logger.log_text(name, columns=["text"], data=[[text]], step=step)

    def histogram(self, name: str, values: np.ndarray, step: int) -> None:
        from wandb import Histogram  # pyright: ignore[reportMissingImports]

        counted = np.histogram(values, bins=BINS)
        self.logger.log_metrics({name: Histogram(np_histogram=counted)}, step)  # pyright: ignore


class _MLflow(MediaWriter[MLFlowLogger]):
    def image(self, name: str, image: Image.Image, step: int) -> None:
        run = self.logger.run_id
        self.logger.experiment.log_image(run, np.asarray(image), key=name, step=step)  # pyright: ignore

    def text(self, name: str, text: str, step: int) -> None:
        self.logger.experiment.log_text(self.logger.run_id, text, f"{name}/{step}.md")  # pyright: ignore

    def histogram(self, name: str, values: np.ndarray, step: int) -> None:
        _leave_out("MLFlowLogger", "no histograms")


WRITERS: dict[type[Logger], type[MediaWriter]] = {
    TensorBoardLogger: _TensorBoard,
    WandbLogger: _WeightsAndBiases,
    MLFlowLogger: _MLflow,
}
"""The writer for each class of loggers, and for classes that are derived from it."""


def writers_for(loggers: Sequence[Logger]) -> list[MediaWriter]:
    """A writer for each logger that takes more than scalars; says once which do not."""
    writers = []
    for logger in loggers:
        kinds = [WRITERS[base] for base in type(logger).__mro__ if base in WRITERS]
        if kinds:
            writers.append(kinds[0](logger))
        elif not isinstance(logger, JSONLinesLogger):  # every run has that one, for its scalars
            _leave_out(type(logger).__name__, "no pictures, texts or histograms")
    return writers


@cache  # once in a process: every callback that writes media would say it
def _leave_out(logger: str, what: str) -> None:
    rank_zero_info(f"{logger} takes {what}: it gets all scalars, and these are left out")
