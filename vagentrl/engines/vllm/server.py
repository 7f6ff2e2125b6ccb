"""An engine that samples from a vLLM server, on other GPUs or on another machine if needed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import httpx
from torch import nn

from vagentrl.engines.base import Generation, GenerationRequest
from vagentrl.engines.vllm.base import Adapter, VLLMBase
from vagentrl.engines.vllm.connections import (
    CONNECT_S,
    Connections,
    RequestFailed,
    ServerError,
    read_json,
)
from vagentrl.engines.vllm.process import ServerProcess, server_command
from vagentrl.engines.vllm.settings import engine_settings, sampling_settings, shown_images
from vagentrl.engines.vllm.weights import equal_on_all
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.event_loops import run_to_the_end
from vagentrl.models.lora import has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GENERATE = "/inference/v1/generate"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""First and longest pause between two attempts to reach a server that does not answer."""
CALL_S, LOAD_S = 30.0, 600.0
"""Timeouts of an ordinary call, and of a call that loads or reads all weights."""
HEALTH_CHECK_S = 10.0
"""Interval of the health checks that detect a silent server."""
ATTEMPTS = 4
"""Attempts at a request before the failure is blamed on the request, not on the server."""


class VLLMServerEngine(VLLMBase):
    """Samples from a vLLM server, with token ids in and out.

    The trainer writes weights to files and the server's workers read them, so both need access to
    `folder` (shared memory on one machine, a shared file system across machines). Every reply
    includes the version of its weights. When a server goes away, the engine waits for it, and
    restarts it if the engine started it. Then the engine sends the weights and all unanswered
    requests again. The canary compares engine and actor as in `VLLMEngine`.

    Args:
        url: Address of a server that was started with `server_command`; None starts a server on
            this machine, which ends with the trainer.
        push: Send the actor's weights; False evaluates the weights that the server has.
        folder: See `VLLMBase`.
        patience_s: Seconds that a server may be away or silent before the run ends.
        start_s: Additional seconds that a server started by this engine may need to start.
        devices: ``CUDA_VISIBLE_DEVICES`` of a server that it starts; None for the trainer's.
        kv_cache_gb: As in `VLLMEngine`, for a server started by this engine.
        tolerance: See `VLLMBase`.
        options: Further vLLM engine arguments by name, for a server started by this engine.

    Attributes:
        restarts: How often the server had lost its weights and received them again.
    """

    def __init__(
        self,
        url: str | None = None,
        push: bool = True,
        folder: str | None = None,
        patience_s: float = 120.0,
        start_s: float = 600.0,
        devices: str | None = None,
        kv_cache_gb: float | None = None,
        tolerance: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(tolerance, folder, options)
        if url is None and not push:
            raise ConfigError(
                "push is false and url is not set: a new server has no weights until they are "
                "pushed; set url to a running server, or leave push out"
            )
        self.url = url
        self.push = push
        self.patience_s = patience_s
        self.start_s = start_s
        self.devices = devices
        self.kv_cache_gb = kv_cache_gb
        self.restarts = 0
        self._server: ServerProcess | None = None
        self._connections: Connections | None = None
        self._version = ""  # name of the current weights on the server
        self._pushed = ""  # name of the last weights that the server received
        self._ready = False  # whether the server was last seen running with the current weights
        self._pending = 0  # number of requests that await their reply
        self._busy_since = 0.0

    # --------------------------------------------------------------------------------- weights

    def update_weights(self, policy: nn.Module, version: int) -> None:
        model = cast("PreTrainedModel", policy)
        self._read_image_layout(model)
        if self.url is None:
            self._server, self.url = self._start(model)
        old_adapter = self._adapter
        if self.push:
            self._save(model)
            self._version = f"{self._name}-{version}-{uuid.uuid4().hex[:8]}"
        self._ready = False
        self._verify_weights(model, self._sample_alone, self._compare)
        if old_adapter is not None:
            self._unload(old_adapter)
            shutil.rmtree(old_adapter.path)
        self.policy_version = version

    def _save(self, policy: PreTrainedModel) -> None:
        """Save the adapter, or all weights if there is no adapter, for the server to read."""
        if has_adapter(policy):
            self._adapter = self._save_adapter(policy)
        else:
            self._save_weights(policy)

    def _push(self) -> None:
        """Make the server load the saved weights and clear its caches."""
        if self._adapter is not None:
            self._unload(self._adapter)  # an interrupted push may have loaded it already
            adapter = {"lora_name": self._adapter.name, "lora_path": self._adapter.path}
            self._call("/v1/load_lora_adapter", adapter, timeout_s=LOAD_S)
        else:
            body = {"method": "vagentrl_load", "args": [self._weights]}
            self._call("/collective_rpc", body, timeout_s=LOAD_S)
        self._reset_prefix_cache()
        for cache in ("mm", "encoder"):
            self._call(f"/reset_{cache}_cache")
        self._call("/update_weight_version", {"new_version": self._version})

    def _unload(self, adapter: Adapter) -> None:
        with suppress(EngineDead, ServerError):  # the server may never have had it
            self._call("/v1/unload_lora_adapter", {"lora_name": adapter.name})

    def _reset_prefix_cache(self) -> None:
        """Clear the prefix cache, retrying while aborted requests still hold blocks of it."""
        given_up = time.monotonic() + CALL_S
        while not self._call("/reset_prefix_cache")["success"]:
            if time.monotonic() > given_up:
                raise ServerError(
                    f"blocks of its prefix cache are still in use after {CALL_S:.0f} s; is "
                    "something else being sampled?"
                )
            time.sleep(FIRST_PAUSE_S)

    def _compare(self, names: Collection[str] | None) -> dict[str, bool]:
        if not self.push or self._adapter is not None:
            return {}  # an adapter cannot be read back
        arguments = [self._weights, None if names is None else list(names)]
        body = {"method": "vagentrl_compare", "args": arguments}
        found = self._retry(lambda: self._call("/collective_rpc", body, timeout_s=LOAD_S))
        return equal_on_all(found["results"])

    # ------------------------------------------------------------------- the server process

    def _start(self, policy: PreTrainedModel) -> tuple[ServerProcess, str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given = (self.options, self.kv_cache_gb, self.dtype)
        settings = engine_settings(policy, self._vocabulary, *given)
        command, environment = server_command(settings, port)
        if self.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices
        return ServerProcess(command, environment), f"http://127.0.0.1:{port}"

    def end_server(self) -> None:
        """End the server if this engine started it, which frees its memory."""
        if self._server is not None:
            self._server.end()
            self._server = None

    def _ensure_ready(self) -> None:
        """Make sure that the server is running and has the current weights."""
        if self._server is not None:
            self._server.keep_running()
        self._call("/health", method="GET")
        if self._server is not None:
            self._server.has_answered()
        if self.push and not self._has_current_weights():
            self.restarts += self._pushed == self._version
            self._push()
            self._pushed = self._version
        self._ready = True

    def _has_current_weights(self) -> bool:
        return self._call("/weight_info", method="GET")["weight_version"] == self._version

    def _unreachable(self, seconds: float, error: Exception) -> EngineDead:
        remedy = "Start it again and resume"
        if self._server is not None:
            remedy = f"{self._server.end_of_log()}\nResume"
        return EngineDead(
            f"the vLLM server at {self.url} has not answered for {seconds:.0f} s: {error}. "
            f"{remedy} the run from its last checkpoint with --ckpt_path, or raise patience_s "
            "(or start_s, if the engine starts the server)"
        )

    # -------------------------------------------------------------------------------- sampling

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check(request)
        body = self._body(request)
        started = time.perf_counter() if not self._pending else None
        self._pending += 1
        try:
            answer = await self._with_retries(partial(self._ask, body))
        finally:
            self._pending -= 1
            self._count_busy_time(started)
        generation = _generation(answer, self.policy_version)
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self._count(len(request.prompt_ids), cached, generation)
        return generation

    def _count_busy_time(self, started: float | None) -> None:
        """Add to `busy_s` the time in which at least one request was pending."""
        if started is not None:
            self._busy_since = started
        if not self._pending:
            self.busy_s += time.perf_counter() - self._busy_since

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        return {
            "model": None if self._adapter is None else self._adapter.name,
            "token_ids": list(request.prompt_ids),
            "features": self._features(request),
            "sampling_params": sampling_settings(request, self._vocabulary),
        }

    def _features(self, request: GenerationRequest) -> dict[str, Any] | None:
        if not request.images:
            return None
        from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import (  # pyright: ignore
            encode_mm_kwargs_item,
        )

        assert self._image_token is not None
        items, names, spans = shown_images(
            request, self._vocabulary, self._image_token, self._merge
        )
        places = [{"offset": start, "length": stop - start} for start, stop in spans]
        return {
            "mm_hashes": {"image": names},
            "mm_placeholders": {"image": places},
            "kwargs_data": {"image": [encode_mm_kwargs_item(item) for item in items]},
        }

    def _sample_alone(self, request: GenerationRequest) -> Generation:
        ask = partial(self._ask, self._body(request))
        return _generation(run_to_the_end(lambda: self._with_retries(ask)), self.policy_version)

    def _retry(self, call: Callable[[], Any]) -> Any:
        """Run a blocking call as in `_with_retries`."""
        return run_to_the_end(lambda: self._with_retries(lambda _: asyncio.to_thread(call)))

    # ------------------------------------------------------------------------------------- HTTP

    async def _with_retries(self, ask: Callable[[Connections], Awaitable[Any]]) -> Any:
        """Ask until there is an answer, restoring the server and its weights in between.

        Raises:
            EngineError: When the server repeatedly fails at this request only.
            EngineDead: When the server is away for too long.
        """
        connections = await self._connect()
        away_since, pause = None, FIRST_PAUSE_S
        failures, restarts = 0, self.restarts
        limit_s = self.patience_s + (0 if self._server is None else self.start_s)
        while True:
            try:
                async with connections.recovery_lock:
                    if not self._ready:
                        await asyncio.to_thread(self._ensure_ready)
                return await ask(connections)
            except ServerError as error:
                self._ready = False
                if self.restarts > restarts:
                    failures, restarts = 0, self.restarts
                failures += isinstance(error, RequestFailed)
                if failures == ATTEMPTS:
                    raise EngineError(
                        f"the vLLM server failed {failures} times at one prompt, and was healthy "
                        f"in between: {error}"
                    ) from error
                away_since = away_since or error.since
                away_s = time.monotonic() - away_since
                if away_s > limit_s:
                    raise self._unreachable(away_s, error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _ask(self, body: dict[str, Any], connections: Connections) -> Any:
        """Send a request once and check that the reply comes from the current weights."""
        url, silent = f"{self.url}{GENERATE}", connections.silent
        asked = asyncio.ensure_future(connections.client.post(url, json=body))
        try:
            await asyncio.wait({asked, silent}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise ServerError("it no longer answers anything", silent.result())
            response = asked.result()
        except httpx.TransportError as error:
            raise ServerError(f"{GENERATE}: {error!r}") from error
        finally:
            asked.cancel()
        refused = 400 <= response.status_code < 500
        if refused and self.push and not await asyncio.to_thread(self._has_current_weights):
            raise ServerError("it no longer has the adapter")
        if response.status_code >= 500:
            raise RequestFailed(f"{GENERATE}: {response.status_code} {response.text[:500]}")
        answer = read_json(response)
        self._check_choice(*answer["choices"])
        return answer

    def _check_choice(self, choice: dict[str, Any]) -> None:
        """Check that a reply is complete and comes from the current weights.

        Raises:
            ServerError: When the request must be sent again.
            EngineDead: When the server does not report the version of its weights.
        """
        if choice["finish_reason"] not in ("stop", "length"):
            raise ServerError(f"it cut a reply off ({choice['finish_reason']})")
        if not self.push:
            return
        spans = choice.get("weight_versions")
        if not spans:
            raise EngineDead(
                f"the vLLM server at {self.url} does not report the version of its weights, so a "
                "restart could not be detected; use vLLM 0.32, or set push to false to evaluate "
                "the weights that it has"
            )
        if others := {span["version"] for span in spans} - {self._version}:
            raise ServerError(f"it answered with weights {sorted(others)}, not {self._version}")

    async def _connect(self) -> Connections:
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
                if self._server is not None and not self._server.answered:
                    last_answer = time.monotonic()  # the server is still starting
                elif time.monotonic() - last_answer > self.patience_s:
                    if self._server is not None:  # `_ensure_ready` will start it again
                        await asyncio.to_thread(self._server.end)
                    connections.give_up(last_answer)

    def _call(
        self, path: str, body: Any = None, method: str = "POST", timeout_s: float = CALL_S
    ) -> Any:
        """Send a blocking call and return the JSON of the answer.

        Raises:
            ServerError: When the server cannot be reached or fails.
            EngineDead: When the server refuses the call: it would refuse it for every request.
        """
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        try:
            return read_json(httpx.request(method, f"{self.url}{path}", json=body, timeout=timeout))
        except httpx.TransportError as error:
            raise ServerError(f"{path}: {error!r}") from error
        except EngineError as error:
            raise EngineDead(str(error)) from error


def _generation(answer: dict[str, Any], policy_version: int) -> Generation:
    (choice,) = answer["choices"]
    return Generation(
        tuple(choice["token_ids"]),
        tuple(token["logprob"] for token in choice["logprobs"]["content"]),
        "stop" if choice["finish_reason"] == "stop" else "length",
        policy_version,
    )
