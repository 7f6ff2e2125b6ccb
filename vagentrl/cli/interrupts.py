"""Ctrl-C and SIGTERM end a command with one line and the exit code that shells expect."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Unwind on the first Ctrl-C or SIGTERM, so that workers and servers are closed."""
    code = 128 + signal.SIGINT

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal code
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
        code = 128 + number
        interrupt = signal.getsignal(signal.SIGINT)  # asyncio has one that cancels its tasks
        if not callable(interrupt):
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if not was_interrupted(error):
            raise
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if all(os.environ.get(name, "0") == "0" for name in _RANKS):
            advice = f"; {error}" if isinstance(error, KeyboardInterrupt) and error.args else ""
            print(f"vagentrl: interrupted{advice}", file=sys.stderr)
        raise SystemExit(code) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def was_interrupted(error: KeyboardInterrupt | SystemExit) -> bool:
    """Whether a signal is the cause: Lightning turns a KeyboardInterrupt into a SystemExit."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)
