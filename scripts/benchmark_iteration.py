"""Measures the time of each stage of a training iteration.

    python scripts/benchmark_iteration.py --config configs/sokoban_vlm.yaml --iterations 5

Runs a few iterations of a recipe (the first is not counted) and prints the median seconds of each
stage and the sampled tokens per second. It also prints a lower bound on the time of the forward and
backward passes: their matrix products at this machine's speed for matrices of the model's size.
The rest is overhead that could be saved.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer

from vagentrl.cli.trainer import VagentCLI

STAGES = ("generate", "environment", "score", "update")


class _Timings(Callback):
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        batch = trainer.datamodule.train_dataloader().whole.rollout  # pyright: ignore
        self._tokens = float(batch.attention_mask.sum())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.rows.append(metrics | {"tokens": self._tokens})


def matmul_rate(width: int, inner: int, rows: int = 1024, seconds: float = 1.0) -> float:
    """Return the multiply-adds per second of a matrix product of the model's size."""
    a, b = torch.randn(rows, width), torch.randn(width, inner)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        torch.mm(a, b)
        count += 1
    return count * rows * width * inner / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the seconds of an iteration go.")
    parser.add_argument("--config", required=True)
    parser.add_argument("--iterations", type=int, default=5)
    known, overrides = parser.parse_known_args()
    cli = VagentCLI(["--config", known.config, *overrides], run=False)
    timings = _Timings()
    trainer, agent = cli.trainer, cli.model
    trainer.callbacks += [timings]  # pyright: ignore
    trainer.fit_loop.max_epochs = known.iterations + 1
    trainer.check_val_every_n_epoch = 10**9
    trainer.fit(agent, cli.datamodule)

    rows = timings.rows[1:]
    median = {n: statistics.median(r[n] for r in rows) for n in rows[0] if n in rows[-1]}
    total = sum(median[f"time/{stage}"] for stage in STAGES)
    print(f"\n{Path(known.config).name}, {platform.processor() or platform.machine()}, "
          f"{torch.get_num_threads()} threads, medians of {len(rows)} iterations")  # fmt: skip
    print(f"{'stage':<14}{'seconds':>9}{'share':>8}")
    for stage in STAGES:
        seconds = median[f"time/{stage}"]
        print(f"{stage:<14}{seconds:>9.2f}{seconds / total:>8.0%}")
    print(f"{'iteration':<14}{total:>9.2f}")
    print(f"sampled tokens per second while collecting: {median['rollout/tokens_per_s']:,.0f}")
    print(f"tokens read per iteration, prompts and replies: {median['tokens']:,.0f}")
    print(_bound(agent, cli.datamodule.passes, median, total))


def _bound(agent, passes: int, median: dict[str, float], total: float) -> str:
    config = agent.actor.policy.config.get_text_config()
    rate = matmul_rate(config.hidden_size, config.intermediate_size)
    models = [m for m in (agent.actor, agent.critic, agent.reference) if m is not None]
    scored = sum(sum(p.numel() for p in m.parameters()) for m in models)
    trained = sum(
        sum(p.numel() for p in m.parameters()) for m in models if m is not agent.reference
    )
    # A backward pass costs about two forward passes.
    products = median["tokens"] * (scored + 3 * passes * trained)
    needed = products / rate
    return (
        f"matrix products of scoring and update: about {needed:.1f} s at the {2 * rate / 1e9:.0f} "
        f"GFLOP/s this machine reaches on the model's layers, {needed / total:.0%} of the iteration"
    )


if __name__ == "__main__":
    main()
