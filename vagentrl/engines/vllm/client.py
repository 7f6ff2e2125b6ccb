"""One vLLM server, as its clients see it: its replies, its weights and whether it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple

import httpx

from vagentrl.engines.vllm.connections import (
    CONNECT_S,
    Connections,
    RequestFailed,
    ServerError,
    ServerSilent,
    read_json,
    tls,
)
from vagentrl.engines.vllm.messages import GENERATE
from vagentrl.engines.vllm.process import ServerProcess
from vagentrl.engines.vllm.weights import equal_on_all, files_in
from vagentrl.errors import EngineDead, EngineError

CALL_S, LOAD_S = 30.0, 600.0
"""Timeouts of an ordinary call, and of a call that loads or reads all weights."""
HEALTH_CHECK_S = 10.0
"""Interval of the health checks that detect a silent server."""
PAUSE_S = 0.25
"""Pause between two attempts to reach a server, in seconds."""


class Adapter(NamedTuple):
    """A saved LoRA adapter, with the unique name and unique number that vLLM requires."""

    name: str
    number: int
    path: str


class Weights(NamedTuple):
    """Weights that a server should have.

    Attributes:
        version: Unique name of the weights.
        folder: Folder with the files of all weights; None if they do not come in files.
        adapter: The adapter, which is loaded instead of the weights; None if there is none.
    """

    version: str
    folder: str | None = None
    adapter: Adapter | None = None


class VLLMClient:
    """Talks to one vLLM server.

    Args:
        url: Address of the server.
        patience_s: Seconds that the server may be silent while requests are pending.
        process: The server's process if this engine has started it. A silent one is ended.
    """

    def __init__(self, url: str, patience_s: float, process: ServerProcess | None = None) -> None:
        self.url = url.rstrip("/")
        self.patience_s = patience_s
        self.process = process
        self._connections: Connections | None = None

    # --------------------------------------------------------------------------------- weights

    def load(self, weights: Weights) -> None:
        """Make the server load weights or an adapter from files."""
        if weights.adapter is not None:
            self.unload(weights.adapter)  # an interrupted push may have loaded it already
            adapter = {"lora_name": weights.adapter.name, "lora_path": weights.adapter.path}
            self.call("/v1/load_lora_adapter", adapter, timeout_s=LOAD_S)
        elif weights.folder is not None:
            body = {"method": "vagentrl_load", "args": [weights.folder]}
            wanted = files_in(weights.folder)
            for found in self._field("results", "/collective_rpc", body, timeout_s=LOAD_S):
                if found != wanted:
                    raise ServerError(
                        f"it sees {len(found)} of {len(wanted)} files of weights in "
                        f"{weights.folder}; set the engine's `folder` to one that trainer and "
                        "server share"
                    )

    def unload(self, adapter: Adapter) -> None:
        """Make the server forget an adapter if it has it."""
        with suppress(EngineDead, ServerError):  # the server may never have had it
            self.call("/v1/unload_lora_adapter", {"lora_name": adapter.name})

    def begin(self, version: str) -> None:
        """Clear the server's caches, and name the weights that it samples from henceforth."""
        self._reset_prefix_cache()
        for cache in ("mm", "encoder"):
            self.call(f"/reset_{cache}_cache")
        self.call("/update_weight_version", {"new_version": version})

    def _reset_prefix_cache(self) -> None:
        """Clear the prefix cache, retrying while aborted requests still hold blocks of it."""
        given_up = time.monotonic() + CALL_S
        while not self._field("success", "/reset_prefix_cache"):
            if time.monotonic() > given_up:
                raise ServerError(
                    f"blocks of its prefix cache are still in use after {CALL_S:.0f} s; is "
                    "something else being sampled?"
                )
            time.sleep(PAUSE_S)

    def version(self) -> str:
        """Return the name of the weights that the server has."""
        return self._field("weight_version", "/weight_info", method="GET")

    def compare(self, folder: str, names: Collection[str] | None) -> dict[str, bool]:
        """Compare the server's weights with files; see `vagentrl.engines.vllm.weights.compare`."""
        body = {"method": "vagentrl_compare", "args": [folder, None if names is None else [*names]]}
        return equal_on_all(self._field("results", "/collective_rpc", body, timeout_s=LOAD_S))

    async def trouble(self, version: str) -> str | None:
        """Say why the server cannot be used; None if it answers and has these weights."""
        found = None
        for _ in range(2):  # one connection may break though the server is well
            try:
                await asyncio.to_thread(self.call, "/health", method="GET")
                has = await asyncio.to_thread(self.version)
                return None if has == version else f"it has weights {has}, not {version}"
            except (ServerError, EngineDead) as error:
                found = str(error)
            await asyncio.sleep(PAUSE_S)
        return found

    # --------------------------------------------------------------------------------- replies

    async def ask(self, body: dict[str, Any], version: str | None) -> Any:
        """Send a request once.

        Args:
            body: See `request_body`.
            version: Version of the weights that must have written the reply; None for any.

        Returns:
            The server's answer.

        Raises:
            ServerError: When there is no complete reply from these weights.
            EngineError: When the server refuses the request.
            EngineDead: When the server does not report the version of its weights.
        """
        connections = await self.connect()
        silent = connections.silent
        asked = asyncio.ensure_future(connections.client.post(f"{self.url}{GENERATE}", json=body))
        try:
            await asyncio.wait({asked, silent}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise ServerSilent("it no longer answers anything", silent.result())
            response = asked.result()
        except httpx.TransportError as error:
            raise ServerError(f"{GENERATE}: {error!r}") from error
        finally:
            asked.cancel()
        refused = 400 <= response.status_code < 500
        if refused and version and await asyncio.to_thread(self.version) != version:
            raise ServerError("it no longer has the adapter")
        return self._checked(response, version)

    def ask_alone(self, body: dict[str, Any], version: str) -> Any:
        """Send a request while no other is pending, and wait; see `ask`."""
        timeout = httpx.Timeout(max(self.patience_s, CALL_S), connect=CONNECT_S)
        try:
            response = self._send("POST", GENERATE, body, timeout)
        except httpx.TransportError as error:
            raise ServerError(f"{GENERATE}: {error!r}") from error
        return self._checked(response, version)

    def _checked(self, response: httpx.Response, version: str | None) -> Any:
        if response.status_code >= 500:
            raise RequestFailed(f"{GENERATE}: {response.status_code} {response.text[:500]}")
        answer = read_json(response)
        try:
            (choice,) = answer["choices"]
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(f"{GENERATE}: {response.text[:500]!r} is no reply") from error
        if choice["finish_reason"] not in ("stop", "length"):
            raise ServerError(f"it cut a reply off ({choice['finish_reason']})")
        if version is not None:
            self._check_version(choice, version)
        return answer

    def _check_version(self, choice: dict[str, Any], version: str) -> None:
        spans = choice.get("weight_versions")
        if not spans:
            raise EngineDead(
                f"the vLLM server at {self.url} does not report the version of its weights, so a "
                "restart could not be detected; use vLLM 0.32, or evaluate the weights that it "
                "has with VLLMServerEngine and push set to false"
            )
        if others := {span["version"] for span in spans} - {version}:
            raise ServerError(f"it answered with weights {sorted(others)}, not {version}")

    # ------------------------------------------------------------------------------------- HTTP

    async def connect(self) -> Connections:
        """Return the running event loop's connections. Every collection uses a new event loop."""
        if self._connections is None or self._connections.loop is not asyncio.get_running_loop():
            connections = self._connections = Connections()
            await anext(connections.closer)
            connections.watch = asyncio.create_task(self._watch(connections))
        return self._connections

    async def _watch(self, connections: Connections) -> None:
        """Fail pending requests once the server has been silent for `patience_s`."""
        last_answer = time.monotonic()
        while True:
            await asyncio.sleep(HEALTH_CHECK_S)
            try:
                health = await connections.client.get(f"{self.url}/health", timeout=CALL_S)
                health.raise_for_status()
                last_answer = time.monotonic()
            except httpx.HTTPError:
                if self.process is not None and not self.process.answered:
                    last_answer = time.monotonic()  # the server is still starting
                elif time.monotonic() - last_answer > self.patience_s:
                    if self.process is not None:  # it is started again when it is needed next
                        await asyncio.to_thread(self.process.end)
                    connections.give_up(last_answer)

    def check_health(self) -> None:
        """Raise unless the server answers; start its process first if it is not running."""
        if self.process is not None:
            self.process.keep_running()
        self.call("/health", method="GET")
        if self.process is not None:
            self.process.has_answered()

    def _field(self, name: str, path: str, *given: Any, **settings: Any) -> Any:
        """Return a field of the answer to a `call`."""
        answer = self.call(path, *given, **settings)
        if not isinstance(answer, dict) or name not in answer:
            raise ServerError(f"{path}: {str(answer)[:200]!r} has no field {name}")
        return answer[name]

    def call(
        self, path: str, body: Any = None, method: str = "POST", timeout_s: float | None = None
    ) -> Any:
        """Send a blocking call and return the JSON of the answer.

        Args:
            path: Path of the URL.
            body: The JSON of the call.
            method: The HTTP method.
            timeout_s: Seconds to wait for the answer; None for `CALL_S`.

        Raises:
            ServerError: When the server cannot be reached or fails.
            EngineDead: When the server refuses the call: it would refuse it for every request.
        """
        timeout = httpx.Timeout(CALL_S if timeout_s is None else timeout_s, connect=CONNECT_S)
        try:
            return read_json(self._send(method, path, body, timeout))
        except httpx.TransportError as error:
            raise ServerError(f"{path}: {error!r}") from error
        except EngineError as error:
            raise EngineDead(str(error)) from error

    def _send(self, method: str, path: str, body: Any, timeout: httpx.Timeout) -> httpx.Response:
        url = f"{self.url}{path}"
        return httpx.request(method, url, json=body, timeout=timeout, verify=tls())
