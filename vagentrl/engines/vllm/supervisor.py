"""Runs a command and kills it, with all its child processes, when standard input is closed.

Standard input is a pipe from the parent process. The operating system closes the pipe when the
parent ends in any way, so the command never outlives its parent.

A line on standard input says that the command's processes have attached to all shared memory that
they need. Its names are then removed: the memory stays until the last process that uses it ends,
and nothing is left behind however the processes end.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL."""


SEGMENT = re.compile(r"(/dev/shm/(?:psm_|vllm_dist_)\S+)$", re.MULTILINE)
"""Shared memory of Python's `multiprocessing` and of vLLM, in a list of a process's memory."""


def main(command: Sequence[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    # A signal to the whole job must not end this process before it has ended the command.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            _unlink_segments(child.pid)
        _unlink_segments(child.pid)  # it may have been starting
        _signal(child.pid, signal.SIGTERM)
        time.sleep(GRACE_S)
        _signal(child.pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)  # worker processes may still be running
    return code if code >= 0 else 128 - code  # the shell's convention for a death by signal


def _unlink_segments(group: int) -> None:
    """Remove the names of the shared memory that a process group has attached (Linux only)."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or is another user's
            state = (folder / "stat").read_text().rpartition(")")[2].split()  # state, parent, group
            if int(state[2]) == group:
                for segment in set(SEGMENT.findall((folder / "maps").read_text())):
                    with suppress(OSError):
                        os.unlink(segment)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
