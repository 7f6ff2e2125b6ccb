"""Measures what a data set of a million rows costs in time and memory.

    python scripts/benchmark_datasets.py [--rows 1000000] [--kinds jsonl jsonl.gz parquet]

It writes a file of verl's form into a temporary folder. A fresh process indexes it and draws rows
at random; a second process finds the index in the cache. Memory is the growth of the process's
anonymous memory from before the first row to its highest point, which is sampled. Pages of files
that are mapped into memory are not part of it: the system takes them back when it needs them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from vagentrl.datasets import TaskFiles

DRAWS = 10_000
SAMPLED_S = 0.01


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Rows like those of GSM8K, of about 770 bytes each."""
    story = "Each of them sold some of the eggs at the market and kept the others. " * 3
    for number in range(count):
        question = f"{number} hens lay {number % 97} eggs each. {story}How many eggs are there?"
        yield {
            "data_source": "hens",
            "agent_name": "tool_agent",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": str(number * (number % 97))},
            "extra_info": {
                "index": number,
                "interaction_kwargs": {"name": "gsm8k", "query": question},
            },
        }


def write(path: Path, count: int) -> None:
    """Write the rows; all rows of the Parquet file are one group, as most writers do it."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        parts, made = [], rows(count)
        while part := list(islice(made, 10_000)):
            parts.append(pyarrow.Table.from_pylist(part))
        table = pyarrow.concat_tables(parts)
        pyarrow.parquet.write_table(table, path, row_group_size=count)
        return
    opening = gzip.open if path.suffix == ".gz" else open
    with opening(path, "wb") as stream:
        for row in rows(count):
            stream.write(json.dumps(row).encode() + b"\n")


class AnonymousMemory:
    """Samples the anonymous memory of this process in a thread."""

    def __init__(self) -> None:
        self.start = self.highest = self._now()
        threading.Thread(target=self._sample, daemon=True).start()

    @property
    def growth_mib(self) -> float:
        """MiB from the start to the highest point so far."""
        return (self.highest - self.start) / 1024

    def _sample(self) -> None:
        while True:
            self.highest = max(self.highest, self._now())
            time.sleep(SAMPLED_S)

    def _now(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))  # kB


def measure(path: str, cache: str) -> dict[str, float]:
    """What it takes to open the file in this process, and to draw rows."""
    if path.endswith(".parquet"):
        import pyarrow.parquet  # noqa: F401 (its own memory is not that of the rows)
    memory = AnonymousMemory()
    started = time.perf_counter()
    tasks = TaskFiles(path, cache=cache)
    count = tasks.count("train")
    opened_s = time.perf_counter() - started
    opened_mib = memory.growth_mib
    rng = Random(0)
    started = time.perf_counter()
    for _ in range(DRAWS):
        tasks.task("train", rng.randrange(count))
    draw_us = (time.perf_counter() - started) / DRAWS * 1e6
    return {
        "opened_s": opened_s,
        "opened_mib": opened_mib,
        "draw_us": draw_us,
        "mib": memory.growth_mib,
    }


def in_a_fresh_process(path: Path, cache: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", str(path), str(cache)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a data set of a million rows costs.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", default=["jsonl", "jsonl.gz", "parquet"])
    parser.add_argument("--measure", nargs=2, metavar=("PATH", "CACHE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*args.measure)))
        return
    print(
        f"{args.rows:,} rows\n\n| file | MiB | first time, s | memory, MiB | from the cache, s | "
        "memory, MiB | a row, µs | cache, MiB |\n|---|---|---|---|---|---|---|---|"
    )
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            path, cache = Path(folder) / f"rows.{kind}", Path(folder) / "cache"
            write(path, args.rows)
            first, again = (in_a_fresh_process(path, cache) for _ in range(2))
            size = path.stat().st_size / 2**20
            kept = sum(file.stat().st_size for file in cache.iterdir()) / 2**20
            print(
                f"| {kind} | {size:.0f} | {first['opened_s']:.1f} | {first['opened_mib']:.0f} | "
                f"{again['opened_s']:.2f} | {again['mib']:.0f} | {again['draw_us']:.0f} | "
                f"{kept:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
