"""One of two ranks under `RankWatch`, for test_rank_watch: dies, fails, or leaves as it is told."""

import os
import signal
import sys
import time
from typing import Any

import torch.distributed

from vagentrl.callbacks import RankWatch

NOTHING: Any = None


def main(rank: str, port: str, ill: str, how: str) -> None:
    os.environ.update(RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.distributed.init_process_group("gloo")
    watch = RankWatch(silence_s=2)
    watch.setup(NOTHING, NOTHING, "fit")
    if rank == ill and how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == ill and how == "freezes":
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == ill and how == "fails":
        watch.on_exception(NOTHING, NOTHING, ValueError("no room"))
        time.sleep(60)  # a rank that fails may take long to end
    if how == "leaves":
        watch.teardown(NOTHING, NOTHING, "fit")
        return
    time.sleep(60)  # stands for a collective that the other rank never joins


if __name__ == "__main__":
    main(*sys.argv[1:])
