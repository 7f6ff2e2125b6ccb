"""Measures how long training waits for a checkpoint, written while it waits and in the background.

    OMP_NUM_THREADS=1 python -m scripts.benchmark_checkpoints
    OMP_NUM_THREADS=1 python -m scripts.benchmark_checkpoints --mebibytes 2000 --folder /data

A state of random weights is saved to one file (`AtomicCheckpointIO`). "waits" is the time of the
call, "processor" how much of it this process was computing, "on the disk" the time until the thread
has written too. It prints medians of ``--repeats``. The disk decides whether the background pays:
give a folder on the one that runs save to.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from vagentrl.modules.background_write import in_background
from vagentrl.modules.checkpoint_io import AtomicCheckpointIO

TENSORS = 100


def measure(state: dict[str, torch.Tensor], path: Path, background: bool) -> list[float]:
    """Save a state once; returns seconds: of the call, of the processor in it, until written."""
    io = AtomicCheckpointIO()
    started, computed = time.perf_counter(), time.thread_time()
    with in_background() if background else nullcontext():
        io.save_checkpoint(state, path)
    waited, computed = time.perf_counter() - started, time.thread_time() - computed
    io.teardown()
    return [waited, computed, time.perf_counter() - started]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mebibytes", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default=".", help="on the disk to measure")
    settings = parser.parse_args()
    torch.manual_seed(0)
    size = settings.mebibytes * 2**20 // 4 // TENSORS
    state = {str(number): torch.randn(size) for number in range(TENSORS)}
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    with TemporaryDirectory(dir=settings.folder) as folder:
        for _ in range(settings.repeats):
            for background, seen in found.items():  # in turn: others use the disk too
                seen.append(measure(state, Path(folder) / "last.ckpt", background))
    title = f"{settings.mebibytes} MiB, seconds"
    print(f"{title:<20}{'waits':>12}{'processor':>12}{'on the disk':>14}")
    waits: list[float] = []
    for background, seen in found.items():
        waited, computed, until = (statistics.median(column) for column in zip(*seen, strict=True))
        name = "in the background" if background else "training waits"
        print(f"{name:<20}{waited:>12.2f}{computed:>12.2f}{until:>14.2f}")
        waits.append(waited)
    print(f"training waits {waits[0] / waits[1]:.1f} times as long without the background")


if __name__ == "__main__":
    main()
