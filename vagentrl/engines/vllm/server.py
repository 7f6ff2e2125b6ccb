"""An engine that samples from a vLLM server, on other GPUs or on another machine if needed."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from vagentrl.engines.base import Generation, GenerationRequest
from vagentrl.engines.vllm.base import VLLMBase
from vagentrl.engines.vllm.client import VLLMClient, Weights
from vagentrl.engines.vllm.connections import RequestFailed, ServerError
from vagentrl.engines.vllm.messages import generation_in
from vagentrl.engines.vllm.process import ServerProcess, free_ports, server_command
from vagentrl.engines.vllm.settings import engine_settings
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.event_loops import run_to_the_end
from vagentrl.models.lora import has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""First and longest pause between two attempts to reach a server that does not answer."""
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
        self._client = None if url is None else VLLMClient(url, patience_s)
        self._wanted: Weights | None = None  # the current weights; None for the server's own
        self._pushed = ""  # version of the last weights that the server received
        self._ready = False  # whether the server was last seen running with the current weights

    @property
    def beside_trainer(self) -> bool:
        """Whether the server runs on the trainer's devices."""
        return self.url is None and self.devices is None

    # --------------------------------------------------------------------------------- weights

    def update_weights(self, policy: nn.Module, version: int) -> None:
        model = cast("PreTrainedModel", policy)
        self._read_image_layout(model)
        if self._client is None:
            self._client = self._start(model)
        old_adapter = self._adapter
        if self.push:
            self._wanted = self._save(model, version)
        self._ready = False
        self._verify_weights(model, self._sample_alone, self._compare)
        if old_adapter is not None:
            self._client.unload(old_adapter)
            shutil.rmtree(old_adapter.path)
        self.policy_version = version

    def _save(self, policy: PreTrainedModel, version: int) -> Weights:
        """Save the adapter, or all weights if there is no adapter, for the server to read."""
        if has_adapter(policy):
            self._adapter = self._save_adapter(policy)
            return Weights(self._version_name(version), adapter=self._adapter)
        return Weights(self._version_name(version), folder=self._save_weights(policy))

    def _compare(self, names: Collection[str] | None) -> dict[str, bool]:
        if self._wanted is None or self._wanted.folder is None:
            return {}  # an adapter cannot be read back
        client, folder = self._server, self._wanted.folder
        return self._retry(lambda: client.compare(folder, names))

    # ------------------------------------------------------------------- the server process

    @property
    def _server(self) -> VLLMClient:
        assert self._client is not None  # `update_weights` has been called
        return self._client

    def _start(self, policy: PreTrainedModel) -> VLLMClient:
        [port] = free_ports(1)
        given = (self.options, self.kv_cache_gb, self.dtype)
        settings = engine_settings(policy, self._vocabulary, *given)
        command, environment = server_command(settings, port)
        if self.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices
        process = ServerProcess(command, environment)
        return VLLMClient(f"http://127.0.0.1:{port}", self.patience_s, process)

    def end_server(self) -> None:
        """End the server if this engine started it, which frees its memory."""
        if self._client is not None and self._client.process is not None:
            self._client.process.end()
            self._client.process = None

    def _ensure_ready(self) -> None:
        """Make sure that the server is running and has the current weights."""
        client, wanted = self._server, self._wanted
        client.check_health()
        if wanted is not None and client.version() != wanted.version:
            self.restarts += self._pushed == wanted.version
            client.load(wanted)
            client.begin(wanted.version)
            self._pushed = wanted.version
        self._ready = True

    def _unreachable(self, seconds: float, error: Exception) -> EngineDead:
        remedy = "Start it again and resume"
        if (process := self._server.process) is not None:
            remedy = f"{process.end_of_log()}\nResume"
        return EngineDead(
            f"the vLLM server at {self._server.url} has not answered for {seconds:.0f} s: {error}. "
            f"{remedy} the run from its last checkpoint with --ckpt_path, or raise patience_s "
            "(or start_s, if the engine starts the server)"
        )

    # -------------------------------------------------------------------------------- sampling

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check(request)
        with self._busy():
            answer = await self._with_retries(self._ask(request))
        return self._counted(request, answer)

    def _sample_alone(self, request: GenerationRequest) -> dict[str, Generation]:
        ask = self._ask(request)
        answer = run_to_the_end(lambda: self._with_retries(ask))
        return {"the engine": generation_in(answer, self.policy_version)}

    def _ask(self, request: GenerationRequest) -> Callable[[], Awaitable[Any]]:
        body = self._body(request)
        version = None if self._wanted is None else self._wanted.version
        return partial(self._server.ask, body, version)

    def _retry(self, call: Callable[[], Any]) -> Any:
        """Run a blocking call as in `_with_retries`."""
        return run_to_the_end(lambda: self._with_retries(lambda: asyncio.to_thread(call)))

    async def _with_retries(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until there is an answer, restoring the server and its weights in between.

        Raises:
            EngineError: When the server repeatedly fails at this request only.
            EngineDead: When the server is away for too long.
        """
        connections = await self._server.connect()
        away_since, pause = None, FIRST_PAUSE_S
        failures, restarts = 0, self.restarts
        limit_s = self.patience_s + (0 if self._server.process is None else self.start_s)
        while True:
            try:
                async with connections.recovery_lock:
                    if not self._ready:
                        await asyncio.to_thread(self._ensure_ready)
                return await ask()
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
