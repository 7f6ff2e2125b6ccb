"""vLLM in a process of its own: on other GPUs, on another machine, or just beside the trainer."""

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
    Failure,
    ServerError,
    read_json,
)
from vagentrl.engines.vllm.process import ServerProcess, server_command
from vagentrl.engines.vllm.settings import engine_settings, sampling_settings, shown_images
from vagentrl.engines.vllm.weights import held_by_all
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.event_loops import run_to_the_end
from vagentrl.models.lora import has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GENERATE = "/inference/v1/generate"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""Between two tries to reach a server that does not answer."""
CALL_S, LOAD_S = 30.0, 600.0
"""For an answer, and for an answer after the weights were read."""
PULSE_S = 10.0
"""Between two looks whether a server that owes replies still answers at all."""
TRIES = 4
"""Of a prompt at which the server fails, while it answers all else."""


class VLLMServerEngine(VLLMBase):
    """Samples from a vLLM server, token in, token out.

    Weights go through files: the trainer writes them, the server's workers read them, so both must
    see `folder` (memory on one machine, a shared file system between several). Every reply says
    from which weights it comes. A server that goes away is waited for, and one that was started
    here is started again; when it is back it gets the weights again, and what was being sampled is
    asked anew. The canary compares engine and actor as in `VLLMEngine`.

    Args:
        url: Where the server is, as started by `server_command`; None starts one on this machine,
            which ends with the trainer.
        push: Give the server the actor's weights. False for one that has them: for evaluation.
        folder: See `VLLMBase`.
        patience_s: Seconds that a server may be away or silent before the run ends.
        start_s: Seconds that a server may take to start, beside those.
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
        self._server: ServerProcess | None = None
        self._connections: Connections | None = None
        self._version = ""  # of the weights, as the server calls it
        self._pushed = ""  # the last version that it was given
        self._sound = False  # whether it is there and has our weights, as far as is known
        self._asked = 0  # requests that await their reply
        self._busy_since = 0.0

    # --------------------------------------------------------------------------------- weights

    def update_weights(self, policy: nn.Module, version: int) -> None:
        model = cast("PreTrainedModel", policy)
        self._know(model)
        if self.url is None:
            self._server, self.url = self._start(model)
        outgrown = self._adapter
        if self.push:
            self._hand_over(model)
            self._version = f"{self._name}-{version}-{uuid.uuid4().hex[:8]}"
        self._sound = False
        self._sing(model, self._sample_alone, self._compare)
        if outgrown is not None:
            self._unload(outgrown)
            shutil.rmtree(outgrown.path)
        self.policy_version = version

    def _hand_over(self, policy: PreTrainedModel) -> None:
        """Put where the server finds it what has changed."""
        if has_adapter(policy):
            self._adapter = self._save_adapter(policy)
        else:
            self._save_weights(policy)

    def _push(self) -> None:
        """Let the server read the weights, and forget what it computed with others."""
        if self._adapter is not None:
            self._unload(self._adapter)  # of a push that came half-way
            adapter = {"lora_name": self._adapter.name, "lora_path": self._adapter.path}
            self._call("/v1/load_lora_adapter", adapter, timeout_s=LOAD_S)
        else:
            body = {"method": "vagentrl_load", "args": [self._weights]}
            self._call("/collective_rpc", body, timeout_s=LOAD_S)
        self._forget_prefixes()
        for cache in ("mm", "encoder"):
            self._call(f"/reset_{cache}_cache")
        self._call("/update_weight_version", {"new_version": self._version})

    def _unload(self, adapter: Adapter) -> None:
        with suppress(EngineDead, ServerError):  # the server may never have had it
            self._call("/v1/unload_lora_adapter", {"lora_name": adapter.name})

    def _forget_prefixes(self) -> None:
        """What an aborted request held is let go only after a step or two."""
        given_up = time.monotonic() + CALL_S
        while not self._call("/reset_prefix_cache")["success"]:
            if time.monotonic() > given_up:
                raise ServerError(
                    f"it keeps blocks of its prefix cache, {CALL_S:.0f} s after all were asked "
                    "for; is something else being sampled?"
                )
            time.sleep(FIRST_PAUSE_S)

    def _compare(self, names: Collection[str] | None) -> dict[str, bool]:
        if not self.push or self._adapter is not None:
            return {}  # of an adapter nothing is read back
        arguments = [self._weights, None if names is None else list(names)]
        body = {"method": "vagentrl_compare", "args": arguments}
        found = self._persist(lambda: self._call("/collective_rpc", body, timeout_s=LOAD_S))
        return held_by_all(found["results"])

    # ------------------------------------------------------------------------ the server's life

    def _start(self, policy: PreTrainedModel) -> tuple[ServerProcess, str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = engine_settings(policy, self._vocabulary, self.options, self.kv_cache_gb)
        command, environment = server_command(settings, port)
        if self.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices
        return ServerProcess(command, environment), f"http://127.0.0.1:{port}"

    def end_server(self) -> None:
        """End the server that was started here, if any: it holds memory that others may want."""
        if self._server is not None:
            self._server.end()
            self._server = None

    def _make_sure(self) -> None:
        """A server is there and has our weights, or gets them."""
        if self._server is not None:
            self._server.keep_running()
        self._call("/health", method="GET")
        if self._server is not None:
            self._server.answered = True
        if self.push and not self._has_our_weights():
            self.restarts += self._pushed == self._version
            self._push()
            self._pushed = self._version
        self._sound = True

    def _has_our_weights(self) -> bool:
        return self._call("/weight_info", method="GET")["weight_version"] == self._version

    def _away(self, seconds: float, error: Exception) -> EngineDead:
        remedy = "Start it again and resume"
        if self._server is not None:
            remedy = f"{self._server.end_of_log()}\nResume"
        return EngineDead(
            f"the vLLM server at {self.url} has not answered for {seconds:.0f} s: {error}. "
            f"{remedy} the run from its last checkpoint with --ckpt_path, or raise patience_s "
            "(start_s for one that is started here)"
        )

    # -------------------------------------------------------------------------------- sampling

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check(request)
        body = self._body(request)
        started = time.perf_counter() if not self._asked else None
        self._asked += 1
        try:
            answer = await self._survive(partial(self._ask, body))
        finally:
            self._asked -= 1
            self._clock(started)
        generation = _generation(answer, self.policy_version)
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

    def _sample_alone(self, request: GenerationRequest) -> Generation:
        ask = partial(self._ask, self._body(request))
        return _generation(run_to_the_end(lambda: self._survive(ask)), self.policy_version)

    def _persist(self, do: Callable[[], Any]) -> Any:
        """Do something with a server that is there and has our weights, whatever it takes."""
        return run_to_the_end(lambda: self._survive(lambda _: asyncio.to_thread(do)))

    # ------------------------------------------------------------------------------------- HTTP

    async def _survive(self, ask: Callable[[Connections], Awaitable[Any]]) -> Any:
        """Ask until there is an answer: a server that went away may come back, without weights."""
        connections = await self._connect()
        away_since, pause = None, FIRST_PAUSE_S
        failures, restarts = 0, self.restarts
        limit_s = self.patience_s + (0 if self._server is None else self.start_s)
        while True:
            try:
                async with connections.one_at_a_time:
                    if not self._sound:
                        await asyncio.to_thread(self._make_sure)
                return await ask(connections)
            except ServerError as error:
                self._sound = False
                if self.restarts > restarts:
                    failures, restarts = 0, self.restarts
                failures += isinstance(error, Failure)
                if failures == TRIES:
                    raise EngineError(
                        f"the vLLM server failed {failures} times at one prompt, and was well in "
                        f"between: {error}"
                    ) from error
                away_since = away_since or error.since
                away_s = time.monotonic() - away_since
                if away_s > limit_s:
                    raise self._away(away_s, error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _ask(self, body: dict[str, Any], connections: Connections) -> Any:
        """Ask once; only an answer that comes from our weights counts."""
        url, silent = f"{self.url}{GENERATE}", connections.silent
        asked = asyncio.ensure_future(connections.client.post(url, json=body))
        try:
            await asyncio.wait({asked, silent}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise ServerError("it stopped to answer at all", silent.result())
            response = asked.result()
        except httpx.TransportError as error:
            raise ServerError(f"{GENERATE}: {error!r}") from error
        finally:
            asked.cancel()
        refused = 400 <= response.status_code < 500
        if refused and self.push and not await asyncio.to_thread(self._has_our_weights):
            raise ServerError("it does not know the adapter any more")
        if response.status_code >= 500:
            raise Failure(f"{GENERATE}: {response.status_code} {response.text[:500]}")
        answer = read_json(response)
        self._check_choice(*answer["choices"])
        return answer

    def _check_choice(self, choice: dict[str, Any]) -> None:
        """Raises:
        ServerError: When it is to be asked again.
        """
        if choice["finish_reason"] not in ("stop", "length"):
            raise ServerError(f"it ended a reply before its end ({choice['finish_reason']})")
        if not self.push:
            return
        spans = choice.get("weight_versions")
        if not spans:
            raise EngineDead(
                f"the vLLM server at {self.url} does not say from which weights it answers, so a "
                "restart would go unseen; take vLLM 0.32, or set push to false to evaluate the "
                "weights that it has"
            )
        if others := {span["version"] for span in spans} - {self._version}:
            raise ServerError(f"it answered from {sorted(others)}, not from {self._version}")

    async def _connect(self) -> Connections:
        """The connections of the running event loop: every collection has a loop of its own."""
        if self._connections is None or self._connections.loop is not asyncio.get_running_loop():
            connections = self._connections = Connections()
            await anext(connections.life)
            connections.watch = asyncio.create_task(self._watch(connections))
        return self._connections

    async def _watch(self, connections: Connections) -> None:
        """Who waits for a reply learns when the server has not answered anything for too long."""
        heard_of = time.monotonic()
        while True:
            await asyncio.sleep(PULSE_S)
            try:
                health = await connections.client.get(f"{self.url}/health", timeout=CALL_S)
                health.raise_for_status()
                heard_of = time.monotonic()
            except httpx.HTTPError:
                if self._server is not None and not self._server.answered:
                    heard_of = time.monotonic()  # it is starting
                elif time.monotonic() - heard_of > self.patience_s:
                    if self._server is not None:  # it will be started again
                        await asyncio.to_thread(self._server.end)
                    connections.give_up(heard_of)

    def _call(
        self, path: str, body: Any = None, method: str = "POST", timeout_s: float = CALL_S
    ) -> Any:
        """Raises:
        EngineDead: When the server refuses: what it is asked here is the same for all requests.
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
