"""Compare mathematical answers, one request per line. A process of its own runs this as a script.

A request is ``{"gold": …, "answer": …}``, and its reply ``{"equal": true | false | null}``; null
says that the gold answer cannot be parsed. `equivalence` kills the process when it is stuck.
"""

import ctypes
import json
import logging
import os
import resource
import sys

PR_SET_PDEATHSIG, SIGKILL = 1, 9


def main() -> None:
    memory_mb, parent = (int(argument) for argument in sys.argv[1:])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before the call
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no reply
    from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

    # It warns that its time-outs are off. They need signals; the parent process keeps the time.
    logging.disable(logging.CRITICAL)
    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        gold = parse(request["gold"], parsing_timeout=0)
        answer = parse(request["answer"], parsing_timeout=0) if gold else []
        equal = verify(gold, answer, timeout_seconds=None) if gold else None
        print(json.dumps({"equal": equal}), file=replies, flush=True)


if __name__ == "__main__":
    main()
