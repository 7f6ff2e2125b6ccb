"""Measures what EchoTrapMonitor adds to an iteration.

    OMP_NUM_THREADS=1 python scripts/benchmark_echo_trap.py --config configs/arithmetic.yaml

Runs a few iterations of a recipe with the monitor (the first is not counted) and prints the CPU
time of the monitor's hooks as a share of the rest of the iteration's, without and with scoring
replies under other prompts. CPU time hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from vagentrl.callbacks import EchoTrapMonitor
from vagentrl.cli.trainer import VagentCLI


class TimedMonitor(EchoTrapMonitor):
    """Adds up the CPU seconds of its hooks."""

    seconds = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        started = time.process_time()
        super().on_train_epoch_start(trainer, pl_module)
        self.seconds += time.process_time() - started

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.callback_metrics  # noqa: B018 (other callbacks would compute them otherwise)
        started = time.process_time()
        super().on_train_epoch_end(trainer, pl_module)
        self.seconds += time.process_time() - started


class Timings(Callback):
    """Notes the CPU seconds of each iteration, and those of the monitor in it."""

    def __init__(self, monitor: TimedMonitor) -> None:
        self.monitor = monitor
        self.rows: list[tuple[float, float]] = []
        self._ended = 0.0

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now, self._ended = time.process_time() - self._ended, time.process_time()
        self.rows.append((now, self.monitor.seconds))
        self.monitor.seconds = 0.0


def measure(config: str, iterations: int, overrides: list[str], cross_score_every: int) -> None:
    """Run a recipe and print a row of the table."""
    cli = VagentCLI(["--config", config, *overrides], run=False)
    monitor = TimedMonitor(cross_score_every=cross_score_every)
    timings = Timings(monitor)
    cli.trainer.callbacks += [monitor, timings]  # pyright: ignore[reportAttributeAccessIssue]
    cli.trainer.fit_loop.max_epochs = iterations + 1
    cli.trainer.limit_val_batches = 0
    cli.trainer.fit(cli.model, cli.datamodule)
    total, added = map(statistics.median, zip(*timings.rows[1:], strict=True))
    scoring = "in every iteration" if cross_score_every else "never"
    cells = [Path(config).stem, scoring, f"{total:.2f}", f"{added:.4f}"]
    print("| " + " | ".join([*cells, f"{added / (total - added):.2%}"]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description="What the monitor adds to an iteration.")
    parser.add_argument("--config", required=True)
    parser.add_argument("--iterations", type=int, default=4)
    known, overrides = parser.parse_known_args()
    print("| recipe | cross-scoring | iteration, CPU s | monitor, CPU s | share |")
    print("|---|---|--:|--:|--:|")
    for every in (0, 1):
        measure(known.config, known.iterations, overrides, every)


if __name__ == "__main__":
    main()
