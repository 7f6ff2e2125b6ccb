"""The servers of a `VLLMFleet`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from vagentrl.engines.vllm.client import PAUSE_S, VLLMClient
from vagentrl.engines.vllm.connections import ServerError
from vagentrl.engines.vllm.process import ServerProcess, free_ports, server_command
from vagentrl.engines.vllm.settings import own_cache
from vagentrl.errors import ConfigError


class Member:
    """A server of a fleet, as one rank sees it.

    Args:
        client: The server's client.

    Attributes:
        problem: Why the server is left out until the next update of the weights; None while it is
            in use.
        episodes: Number of episodes that this rank plays with the server.
    """

    def __init__(self, client: VLLMClient) -> None:
        self.client = client
        self.problem: str | None = None
        self.episodes = 0

    @property
    def in_use(self) -> bool:
        return self.problem is None

    @property
    def starts(self) -> bool:
        """Whether it is a process of this engine that has not answered anything yet."""
        return self.client.process is not None and not self.client.process.answered

    @property
    def ended(self) -> bool:
        """Whether it is a process of this engine that has ended."""
        return self.client.process is not None and self.client.process.ended

    def in_words(self) -> str:
        """Return what is wrong with the server, with the end of its log if there is one."""
        process = self.client.process
        log = "" if process is None else f"; {process.end_of_log()}\n"
        return f"{self.client.url}: {self.problem}{log}"

    def wait(self, seconds: float) -> None:
        """Return when the server answers; a process of this engine is started if it must be.

        A process that has answered before and is silent now is ended, to be started again by the
        next call.

        Args:
            seconds: Seconds after which to give up; 0 tries once.

        Raises:
            ServerError: When the server has not answered by then.
            EngineDead: When the process ended before it answered anything.
        """
        process, given_up = self.client.process, time.monotonic() + seconds
        while True:
            try:
                return self.client.check_health()
            except ServerError:
                if time.monotonic() > given_up:
                    if process is not None and process.answered:
                        process.end()
                    raise
            time.sleep(PAUSE_S)


def start_servers(
    settings: dict[str, Any], devices: Sequence[str | None], patience_s: float
) -> list[VLLMClient]:
    """Return clients of new servers on this machine, which start when they are first needed.

    Args:
        settings: vLLM's engine arguments, see `engine_settings`.
        devices: ``CUDA_VISIBLE_DEVICES`` of each server; None for this process's.
        patience_s: See `VLLMClient`.
    """
    clients: list[VLLMClient] = []
    for number, port in enumerate(free_ports(len(devices))):
        command, environment = server_command(settings, port)
        environment |= own_cache(f"server-{number}")
        if (shown := devices[number]) is not None:
            environment["CUDA_VISIBLE_DEVICES"] = shown
        process = ServerProcess(command, environment)
        clients.append(VLLMClient(f"http://127.0.0.1:{port}", patience_s, process))
    return clients


def check_servers(
    urls: Sequence[str] | None,
    servers: int | None,
    devices: Sequence[str] | None,
    transfer: str,
) -> None:
    """Check the settings of a fleet.

    Raises:
        ConfigError: When they do not say which servers there are, or how these get weights.
    """
    if transfer not in ("files", "nccl", "ipc"):
        raise ConfigError(f"transfer is {transfer!r}; give files, nccl or ipc")
    if (urls is None) == (servers is None):
        raise ConfigError(
            f"urls is {urls} and servers is {servers}; give one of the two: addresses of servers "
            "that run, or how many to start on this machine"
        )
    if urls is not None:
        if isinstance(urls, str) or not urls or len({url.rstrip("/") for url in urls}) < len(urls):
            raise ConfigError(
                f"urls is {urls}; give a list with the address of each server, such as "
                "[http://node1:8000, http://node2:8000], each once"
            )
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"urls has {url!r}; begin it with http:// and end with a port")
    if servers is not None and servers < 1:
        raise ConfigError(f"servers is {servers}; start at least 1, or give urls")
    if devices is not None and len(devices) != servers:
        raise ConfigError(
            f"devices is {devices} and servers is {servers}; give the CUDA_VISIBLE_DEVICES of each "
            "server that is started here, such as ['4,5', '6,7'] for 2, or leave devices out"
        )
