"""Two nodes on one machine: each has a launcher of its own with one process."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

ROOT = Path(__file__).parents[2]
SECONDS = 240  # far more than a run takes, also on a busy machine
TWO_NODES = ("--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=ddp")

Launcher = Callable[[int, int], tuple[list[str], dict[str, str]]]
"""From a node's number and the port of node 0 to a command and what is added to the environment."""


class NodeDies(Callback):
    """Kills one node, its process and the launcher of it, as if somebody pulled the plug.

    Args:
        node: The node's number.
        epoch: The iteration, from 0, at whose start the node dies.
    """

    def __init__(self, node: int = 1, epoch: int = 1) -> None:
        self.node, self.epoch = node, epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.node_rank == self.node and trainer.current_epoch == self.epoch:
            if "TORCHELASTIC_RUN_ID" in os.environ:  # or the parent is the test
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def torchrun(node: int, port: int) -> tuple[list[str], dict[str, str]]:
    """Launch a node by torchrun."""
    settings = ["--nnodes=2", f"--node_rank={node}", "--nproc_per_node=1"]
    settings += ["--master_addr=127.0.0.1", f"--master_port={port}"]
    return [sys.executable, "-m", "torch.distributed.run", *settings, "-m", "vagentrl"], {}


def by_lightning(node: int, port: int) -> tuple[list[str], dict[str, str]]:
    """Launch a node by the command itself."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": str(node)}
    return [sys.executable, "-m", "vagentrl"], where


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment() -> dict[str, str]:
    """The environment of a program that imports this repository."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def fit(launcher: Launcher, folder: Path, arguments: Sequence[str]) -> list[tuple[int, str]]:
    """Run ``vagentrl fit`` on two nodes; returns the exit code and the messages of each.

    Args:
        launcher: How a node is launched.
        folder: The working directory of both nodes, as on a shared disk.
        arguments: Those of ``fit``.
    """
    port, nodes, logs = free_port(), [], []
    for node in range(2):
        command, added = launcher(node, port)
        logs.append(folder / f"{launcher.__name__}_{node}.log")
        with logs[-1].open("w") as log:
            nodes.append(
                subprocess.Popen(
                    [*command, "fit", *TWO_NODES, *arguments],
                    cwd=folder,
                    env=environment() | added,
                    stdout=log,
                    stderr=log,
                )
            )
    try:
        codes = [node.wait(timeout=SECONDS) for node in nodes]
    finally:
        for node in nodes:
            node.terminate()  # torchrun passes it on to its process
    return [(code, log.read_text()) for code, log in zip(codes, logs, strict=True)]
