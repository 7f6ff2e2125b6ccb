"""Makes the problems of `vagentrl_envs.arithmetic`, from seeds and nothing else.

    python scripts/make_arithmetic.py

Each rung is one file. A problem is written in some of the orders that give the same result, such
as 3 + 5 and 5 + 3; all of them are in one split.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

TARGET = Path(__file__).parents[1] / "envs/vagentrl_envs/arithmetic/data"
Problem = dict[str, int]
"""The ways to write a problem, with their results."""


def sums(one: range, other: range) -> Iterator[Problem]:
    """All sums of two numbers, each in both orders."""
    for a in one:
        for b in other:
            if b not in one or a not in other or a <= b:
                yield {f"{a} + {b}": a + b, f"{b} + {a}": a + b}


def small_differences() -> Iterator[Problem]:
    for a in range(21):
        for b in range(a + 1):
            yield {f"{a} - {b}": a - b}


def large_differences() -> Iterator[Problem]:
    """Differences of two-digit numbers, which may be negative: 30 - 45 belongs to 45 - 30."""
    for a in range(21, 100):
        for b in range(21, a):
            yield {f"{a} - {b}": a - b, f"{b} - {a}": b - a}


def products() -> Iterator[Problem]:
    for a in range(13):
        for b in range(a, 13):
            yield {f"{a} * {b}": a * b, f"{b} * {a}": a * b}


def two_operations() -> Iterator[Problem]:
    for a in range(2, 10):
        for b in range(a, 10):
            for c in range(1, 20):
                yield {f"{a} * {b} + {c}": a * b + c, f"{c} + {b} * {a}": a * b + c}
                yield {f"{a} + {b} - {c}": a + b - c, f"{b} + {a} - {c}": a + b - c}


DIGITS, TWO_DIGITS = range(10), range(10, 100)
LADDER: tuple[tuple[Callable[[], Iterator[Problem]], int | None], ...] = (  # at most so many
    (lambda: sums(DIGITS, DIGITS), None),
    (small_differences, None),
    (lambda: sums(TWO_DIGITS, DIGITS), None),
    (lambda: sums(TWO_DIGITS, TWO_DIGITS), 600),
    (large_differences, 400),
    (products, None),
    (two_operations, 500),
)


def rows(rung: int) -> Iterator[dict[str, Any]]:
    """The rows of a rung; a tenth of the problems each is held out, or a fifth of the few."""
    make, most = LADDER[rung - 1]
    problems = list(make())
    Random(f"arithmetic, rung {rung}").shuffle(problems)
    problems = problems[:most]
    held_out = max(len(problems) // 10, min(len(problems) // 5, 20))
    for number, problem in enumerate(problems):
        split = ("validation", "test", "train")[min(number // held_out, 2)]
        for written, result in problem.items():
            yield {
                "prompt": f"What is {written}?",
                "answer": str(result),
                "split": split,
                "interaction_kwargs": {"name": "arithmetic", "problem": written, "rung": rung},
            }


def content(rung: int) -> bytes:
    """The file of a rung, before it is compressed."""
    return "".join(json.dumps(row) + "\n" for row in rows(rung)).encode()


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for rung in range(1, len(LADDER) + 1):
        path = TARGET / f"rung_{rung}.jsonl.gz"
        written = content(rung)
        path.write_bytes(gzip.compress(written, 9, mtime=0))
        size = path.stat().st_size
        print(f"{path.name}: {len(written.splitlines())} rows, {size:,} bytes compressed")


if __name__ == "__main__":
    main()
