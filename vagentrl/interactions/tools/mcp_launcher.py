"""Start an MCP server that ends with the process that started it. Runs as a script.

A server should end when its standard input ends. One that does not would outlive a trainer that is
killed, so the kernel is asked to kill it then.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:  # it may have ended before the call
        os.execvp(command[0], command)


if __name__ == "__main__":
    main()
