"""Checks that episodes grow no memory, and that close releases all."""

from __future__ import annotations

import gc
import os
import resource
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from vagentrl.checkenv.bench import (
    Bench,
    draw_actions,
    frame_of,
    play_at_random,
    reply_with,
    reset,
    step,
    variable,
)
from vagentrl.checkenv.report import Checked, Finding, failed, passed
from vagentrl.environment import Environment, seed_of
from vagentrl.rollout.workers import state_of

PROCESS = Path("/proc/self")
TURNS = 50
"""Turns of an episode that are played to see whether memory grows."""
PARTS = 5
"""Parts of the second half of the episodes; a leak grows in each of them."""
TRACED_BYTES = 2048
"""Bytes of Python objects that may stay behind after an episode."""
RESIDENT_BYTES = 8192
"""Bytes of the whole process that may stay behind after an episode."""
SLACK = 6 << 20
"""Bytes by which a process may grow in any case: allocators take memory in large pieces."""


def check_memory(bench: Bench) -> Checked:
    """Play episodes, and compare memory before and after the second half of them.

    With few episodes the same seeds are played three times, and memory is compared at the end of
    the second time and of the third: a bounded cache of the environment then holds the same. With
    500 or more, every seed of the second half is new. It is then played in parts, all of which must
    grow: what a bounded cache holds takes now more and now less.
    """
    name, environment = "memory", bench.environment
    half = max(1, bench.effort.episodes // 2)
    fresh = bench.effort.episodes >= 500
    seeds = [seed_of("train", index) for index in range(half)]
    later = [seed_of("train", half + index) for index in range(2 * half)]
    tracemalloc.start()  # before the caches fill: what drops out of them must be known, too
    try:
        warm = _play(environment, bench.within_time(seeds, share=0.35))
        settled = max(1, warm // 4)  # a quarter more, before memory is measured
        again = later[settled : settled + half] if fresh else seeds[:warm]
        _play(environment, later[:settled] if fresh else again)
        resident, before = _resident(), _traced()
        parts = PARTS if fresh else 1
        counts, marks = [], [before]
        for part in range(parts):
            some = again[part * len(again) // parts : (part + 1) * len(again) // parts]
            counts.append(_play(environment, bench.within_time(some, share=0.4 / parts)))
            marks.append(_traced())
    finally:
        tracemalloc.stop()
    played, grown, swollen = sum(counts), marks[-1] - before, _resident() - resident
    seen = (
        f"{grown / played / 1024:.1f} KiB of Python objects and {swollen / played / 1024:.1f} KiB "
        f"of the process per episode, over {played} episodes after {warm}"
    )
    growths = [after - earlier for earlier, after in pairwise(marks)]
    steady = all(growth > TRACED_BYTES * n / 2 for growth, n in zip(growths, counts, strict=True))
    leaks = steady and grown > TRACED_BYTES * played + 65536
    if leaks or swollen > RESIDENT_BYTES * played + SLACK:
        return Checked((failed(
            name,
            seen,
            f"at most {TRACED_BYTES / 1024:.0f} and {RESIDENT_BYTES / 1024:.0f} KiB (beyond "
            f"{SLACK >> 20} MiB)",
            "drop what belongs to an episode in reset; bound caches (lru_cache(maxsize=…))",
        ),))  # fmt: skip
    return Checked((passed(name, seen),))


def _play(environment: Environment, seeds: Iterable[int]) -> int:
    """Play the first turns of episodes; returns their number."""
    played = 0
    for seed in seeds:
        for turn, _ in enumerate(play_at_random(environment, seed, Random(seed))):
            if turn == TURNS:
                break
        frame_of(environment)
        state_of(environment)
        played += 1
    return played


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _resident() -> int:
    """Bytes of the process in memory; where the system does not say, the most there ever were."""
    gc.collect()
    try:
        pages = int((PROCESS / "statm").read_text().split()[1])
    except OSError:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    threads: int
    children: int
    files: int
    temporary_files: int


def held() -> Held:
    """Count the threads, child processes, open and temporary files of this process."""
    temporary = len(os.listdir(tempfile.gettempdir()))
    if not PROCESS.exists():  # not Linux: only Python's own threads are known
        return Held(threading.active_count(), 0, 0, temporary)
    tasks = list((PROCESS / "task").iterdir())
    children = sum(map(_children, tasks))
    return Held(len(tasks), children, len(os.listdir(PROCESS / "fd")), temporary)


def _children(task: Path) -> int:
    """The number of processes that a thread has started and that have not ended."""
    try:
        return len((task / "children").read_text().split())
    except OSError:  # the thread has ended, or the kernel does not tell
        return 0


def check_close(bench: Bench) -> Checked:
    """Make, play and close environments, and see what stays behind; close each twice."""
    with _own_temporary_folder():
        return _check_close(bench)


@contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """Let temporary files be made in a folder that no other program uses."""
    before = tempfile.tempdir
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        variable("TMPDIR", folder),
    ):
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def _check_close(bench: Bench) -> Checked:
    name = "close"
    _live_and_close(bench)  # what a library starts once for all is none of ours
    before, rounds = held(), 3
    for _ in range(rounds):
        _live_and_close(bench)
    gc.collect()
    left = {}
    for _ in _waiting():
        after = held()
        left = {
            kind: getattr(after, kind) - count
            for kind, count in vars(before).items()
            if getattr(after, kind) - count >= rounds
        }
        if not left:
            return Checked((passed(name, "no thread, process or file is left; twice is harmless"),))
    seen = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in left.items())
    return Checked((_left_open(name, seen, rounds),))


def _left_open(name: str, seen: str, rounds: int) -> Finding:
    return failed(
        name,
        f"{seen} more than before, after {rounds} environments were closed",
        "none",
        "close and join in close() whatever __init__ or reset opened",
    )


def _waiting() -> Iterator[None]:
    """Wait a little between attempts: threads and processes take a moment to end."""
    for attempt in range(6):
        yield
        time.sleep(0.02 * 2**attempt)


def _live_and_close(bench: Bench) -> None:
    environment = bench.make()
    for index in range(3):  # what one reset opens, the next one or close releases
        reset(environment, seed_of("train", index))
        step(environment, reply_with(environment, draw_actions(environment, Random(0))))
    environment.close()
    environment.close()
    bench.make().close()  # one that was never reset
