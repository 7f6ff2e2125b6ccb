"""Runs a command and kills it, with all its child processes, when standard input is closed.

Standard input is a pipe from the parent process. The operating system closes the pipe when the
parent ends in any way, so the command never outlives its parent.
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
"""Time between SIGTERM and SIGKILL."""


def main(command: Sequence[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    # A signal to the whole job must not end this process before it has ended the command.
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
    _signal(child.pid, signal.SIGKILL)  # worker processes may still be running
    return code if code >= 0 else 128 - code  # the shell's convention for a death by signal


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
