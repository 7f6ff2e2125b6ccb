"""Programs that run in several processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed_in_every_process(program: str) -> str:
    """What a Python program prints, after two processes with different hash seeds agree on it."""
    path = os.pathsep.join(sys.path)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    printed, other = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert printed == other
    return printed


def run_ranks(module: str, folder: Path, *arguments: str, count: int = 2) -> None:
    """Run a module in several processes, the ranks of one run, until all of them have ended.

    Args:
        module: Its ``__main__`` gets its rank and the port of rank 0, then the other arguments.
        folder: The processes' working directory, which gets their standard errors too.
        *arguments: Other arguments.
        count: The number of ranks.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    path = os.pathsep.join([str(ROOT), *sys.path])
    logs = [folder / f"{module}_{rank}.log" for rank in range(count)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), port, *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            stderr=log.open("w"),
        )
        for rank, log in enumerate(logs)
    ]
    try:
        codes = [process.wait(timeout=600) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert codes == [0] * count, [log.read_text()[-3000:] for log in logs]
