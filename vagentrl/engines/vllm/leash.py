"""Runs a command until it ends, or until standard input does: then it is ended with all it started.

Whoever holds the other end of the pipe lets go of it by ending, however that happens.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

GRACE_S = 10.0
"""For the command to end by itself."""


def main(command: Sequence[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    # what ends a job signals all its processes; this one must outlive those that it has to end
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        _signal(child.pid, signal.SIGTERM)
        time.sleep(GRACE_S)
        _signal(child.pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)  # workers outlive a server that is gone
    return code if code >= 0 else 128 - code  # as a shell says it


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
