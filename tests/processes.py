"""Programs that must print the same in every process."""

import os
import subprocess
import sys


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
