"""Writes what a run logs as lines of JSON."""

from __future__ import annotations

import json
import math
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only


class JSONLinesLogger(Logger):
    """Appends each set of metrics to a file, as one line of JSON.

    A line holds ``iteration``, ``seconds`` since the logger was made, and the metrics by their
    names. A number that is not finite is null, as JSON knows none. Each line is written as a whole
    and at once, so another program can follow the file. Only rank 0 writes.

    Args:
        path: The file; its folder is made with the first line.
        begins: Asked before the first line: whether the file of an earlier run is replaced.
    """

    def __init__(self, path: Path | str, begins: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.path = Path(path)
        self._begins = begins
        self._has_written = False
        self._started = time.monotonic()

    @property
    def name(self) -> str | None:
        return None

    @property
    def version(self) -> str | None:
        return None

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        seconds = round(time.monotonic() - self._started, 3)
        numbers = {name: _finite(float(value)) for name, value in sorted(metrics.items())}
        line = json.dumps({"iteration": step, "seconds": seconds, **numbers}, allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replaces = not self._has_written and self._begins()
        with self.path.open("w" if replaces else "a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._has_written = True

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Settings are in ``config.yaml``, so there is nothing to do."""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
