"""vLLM in the trainer's process: paged attention, prefix caching, continuous batching."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import random
import shutil
import sys
import time
import warnings
import weakref
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from vagentrl.devices import same_device
from vagentrl.engines.base import Generation, GenerationRequest
from vagentrl.engines.vllm.base import VLLMBase
from vagentrl.engines.vllm.settings import (
    ENVIRONMENT,
    WORKER_EXTENSION,
    cache_of_rank,
    engine_settings,
    sampling_settings,
    shown_images,
)
from vagentrl.engines.vllm.weights import compare, equal_on_all, load_weights, weights_of
from vagentrl.errors import EngineDead, EngineError, VagentError
from vagentrl.models.lora import has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EXECUTOR = "vagentrl.engines.vllm.executor.LocalDeviceExecutor"


class VLLMEngine(VLLMBase):
    """Samples with vLLM, which holds a copy of the actor's weights.

    Prompts are passed as token ids, and images as the patches that the actor reads, so vLLM neither
    tokenises nor resizes. After every update of the weights, a canary compares the log-probs of
    engine and actor.

    Args:
        max_num_seqs: Maximum number of replies sampled at a time.
        gpu_memory_utilization: Fraction of a GPU's memory for weights and KV cache.
        kv_cache_gb: Memory of the KV cache in GiB; None for the memory that
            `gpu_memory_utilization` leaves on a GPU, and 1 on a CPU.
        tensor_parallel_size: Number of GPUs that share the weights.
        enforce_eager: Do not compile graphs: vLLM starts faster and samples more slowly.
        sleep: Free GPU memory while the actor is trained.
        tolerance: See `VLLMBase`.
        options: Further engine arguments of vLLM, by name.
    """

    def __init__(
        self,
        max_num_seqs: int = 256,
        gpu_memory_utilization: float = 0.5,
        kv_cache_gb: float | None = None,
        tensor_parallel_size: int = 1,
        enforce_eager: bool = False,
        sleep: bool = True,
        tolerance: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(tolerance)
        self.options = {
            "max_num_seqs": max_num_seqs,
            "gpu_memory_utilization": gpu_memory_utilization,
            "tensor_parallel_size": tensor_parallel_size,
            "enforce_eager": enforce_eager,
            "enable_prefix_caching": True,
            **(options or {}),
        }
        self.kv_cache_gb = kv_cache_gb
        self.sleep = sleep
        self._llm: Any = None  # an LLMEngine; type checks must pass without vLLM installed
        self._asleep = False
        self._dead: EngineDead | None = None
        self._thread = ThreadPoolExecutor(1, "vllm", self._set_up_thread)
        self._waiting: list[tuple[str, GenerationRequest]] = []
        self._open: dict[str, asyncio.Future[Generation]] = {}
        self._names = itertools.count()
        self._task: asyncio.Task[None] | None = None

    # --------------------------------------------------------------------------------- weights

    def update_weights(self, policy: nn.Module, version: int) -> None:
        if self._open:
            raise EngineError(
                f"new weights while {len(self._open)} replies are being sampled; await them first"
            )
        model = cast("PreTrainedModel", policy)
        with self._fatal_errors("while it took new weights"):
            self._transfer_weights(model)
        self.policy_version = version
        self._verify_weights(model, self._sample_alone, partial(self._compare, model))

    def _transfer_weights(self, policy: PreTrainedModel) -> None:
        if self._llm is None:
            llm = self._llm = self._start_vllm(policy)
            self._threads, self._select_device = torch.get_num_threads(), same_device()
        else:
            llm = self._llm
            if self._asleep:
                llm.wake_up(["weights"])
        if has_adapter(policy):
            self._change_adapter(policy)
        elif self._has_workers:
            llm.collective_rpc("vagentrl_load", args=(self._save_weights(policy),))
        else:
            llm.collective_rpc(load_weights, args=(weights_of(policy),))
        if self._asleep:
            llm.wake_up(["kv_cache"])
            self._asleep = False
        # The caches hold results of the old weights.
        if not llm.reset_prefix_cache():
            raise EngineError(
                "vLLM could not clear its prefix cache, because blocks are in use; is something "
                "being sampled?"
            )
        llm.reset_encoder_cache()
        llm.reset_mm_cache()

    def _set_up_thread(self) -> None:
        """Give the thread that steps vLLM what belongs to a thread: CPU threads and a device."""
        # vLLM's attention crashes if this thread and the main thread use different counts.
        torch.set_num_threads(self._threads)
        self._select_device()

    @contextmanager
    def _fatal_errors(self, when: str) -> Iterator[None]:
        """Turn errors of vLLM into `EngineDead`: it does not recover from them.

        Raises:
            EngineDead: When vLLM raises in this context, or has raised in an earlier one.
        """
        if self._dead is not None:
            raise self._dead
        try:
            yield
        except VagentError:
            raise
        except Exception as error:
            self._dead = EngineDead(
                f"vLLM died {when}: {error!r}. The current batch is lost; resume the run from its "
                "last checkpoint with --ckpt_path. If memory ran out, lower "
                "gpu_memory_utilization, kv_cache_gb or max_num_seqs"
            )
            raise self._dead from error

    @property
    def _has_workers(self) -> bool:
        """Whether the model runs in worker processes, which read the weights from files."""
        return self.options["tensor_parallel_size"] > 1

    @property
    def _can_sleep(self) -> bool:
        return self.sleep and torch.cuda.is_available()

    def _change_adapter(self, policy: PreTrainedModel) -> None:
        before, self._adapter = self._adapter, self._save_adapter(policy)
        if before is not None:
            self._llm.remove_lora(before.number)
            shutil.rmtree(before.path)

    def rest(self) -> None:
        if self._can_sleep and self._llm is not None and not self._asleep:
            # Level 2 discards the weights, which the next update sends again. With an adapter,
            # updates do not include the base weights, so level 1 keeps them.
            with self._fatal_errors("while it freed memory"):
                self._llm.sleep(level=2 if self._adapter is None else 1)
            self._asleep = True

    def _start_vllm(self, policy: PreTrainedModel) -> Any:
        for name, value in (ENVIRONMENT | cache_of_rank()).items():
            os.environ.setdefault(name, value)
        self._read_image_layout(policy)
        shield_llvmlite()
        with _preserved_process_state():
            from vllm import EngineArgs  # pyright: ignore
            from vllm.v1.engine.llm_engine import LLMEngine  # pyright: ignore

            settings = engine_settings(
                policy, self._vocabulary, self.options, self.kv_cache_gb, self.dtype
            )
            settings["enable_sleep_mode"] = self._can_sleep
            settings["worker_extension_cls"] = WORKER_EXTENSION
            if not self._has_workers:
                settings.setdefault("distributed_executor_backend", EXECUTOR)
            try:
                llm = LLMEngine.from_engine_args(EngineArgs(**settings))
            except (ValueError, RuntimeError, TypeError, OSError) as error:
                raise EngineError(
                    f"vLLM could not start with {settings['model']!r}: {error}. If memory ran "
                    "out, lower gpu_memory_utilization, kv_cache_gb, max_num_seqs or "
                    "data.context_length; if vLLM does not support the model, use "
                    "vagentrl.engines.TransformersEngine"
                ) from error
        atexit.register(_end, weakref.ref(self))
        return llm

    def _sample_alone(self, request: GenerationRequest) -> dict[str, Generation]:
        """Sample one reply while no other request is in progress."""
        outputs: list[Any] = []
        with self._fatal_errors("while it sampled for the canary"):
            self._add("alone", request)
            while self._llm.has_unfinished_requests():
                outputs += self._llm.step()
        return {"the engine": _generation(outputs[-1], self.policy_version)}

    def _compare(self, policy: PreTrainedModel, names: Collection[str] | None) -> dict[str, bool]:
        if self._adapter is not None:
            return {}  # an adapter cannot be read back
        if self._has_workers:
            found = self._llm.collective_rpc("vagentrl_compare", args=(self._weights, names))
            return equal_on_all(found)
        return self._llm.collective_rpc(compare, args=(weights_of(policy, names),))[0]

    # -------------------------------------------------------------------------------- sampling

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check(request)
        if self._dead is not None:
            raise self._dead
        name = str(next(self._names))
        self._open[name] = answer = asyncio.get_running_loop().create_future()
        self._waiting.append((name, request))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        """Step vLLM while there are requests; the episodes run meanwhile."""
        try:
            with self._fatal_errors("in mid-reply"):
                await self._step_while_open()
        except VagentError as error:  # raised by every `generate` that awaits a reply
            self._stop(error)
        except BaseException as error:  # without this, `generate` would wait forever
            self._thread.submit(self._llm.abort_request, list(self._open))
            self._stop(EngineError(f"sampling was interrupted: {error!r}"))
            raise

    async def _step_while_open(self) -> None:
        loop, llm = asyncio.get_running_loop(), self._llm
        while self._open:
            await asyncio.sleep(0)
            self._drop_abandoned()
            for name, request in self._waiting:
                self._admit(name, request)
            self._waiting.clear()
            if not llm.has_unfinished_requests():
                continue
            started = time.perf_counter()
            outputs = await loop.run_in_executor(self._thread, llm.step)
            self.busy_s += time.perf_counter() - started
            for output in outputs:
                self._finish(output)

    def _stop(self, error: Exception) -> None:
        for name in list(self._open):
            self._fail(name, error)
        self._waiting.clear()

    def _admit(self, name: str, request: GenerationRequest) -> None:
        try:
            self._add(name, request)
        except Exception as error:  # a bad prompt must fail only its own request
            refused = EngineError(f"vLLM could not read the prompt: {error}")
            refused.__cause__ = error
            self._fail(name, refused)

    def _add(self, name: str, request: GenerationRequest) -> None:
        from vllm import SamplingParams  # pyright: ignore
        from vllm.lora.request import LoRARequest  # pyright: ignore
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore

        params = SamplingParams(
            **sampling_settings(request, self._vocabulary),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        adapter = None if self._adapter is None else LoRARequest(*self._adapter)
        self._llm.add_request(name, self._prompt(request), params, lora_request=adapter)

    def _prompt(self, request: GenerationRequest) -> Any:
        from vllm.inputs import mm_input, tokens_input  # pyright: ignore
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange  # pyright: ignore

        ids = list(request.prompt_ids)
        if not request.images:
            return tokens_input(ids)
        assert self._image_token is not None
        items, names, spans = shown_images(
            request, self._vocabulary, self._image_token, self._merge
        )
        places = [PlaceholderRange(start, stop - start) for start, stop in spans]
        return mm_input(
            ids, MultiModalKwargsItems({"image": items}), {"image": names}, {"image": places}
        )

    def _drop_abandoned(self) -> None:
        abandoned = [name for name, answer in self._open.items() if answer.done()]
        if abandoned:
            self._llm.abort_request(abandoned)
        for name in abandoned:
            del self._open[name]

    def _finish(self, output: Any) -> None:
        answer = self._open.pop(output.request_id, None)
        if answer is None or answer.done():
            return
        generation = _generation(output, self.policy_version)
        self._count(len(output.prompt_token_ids), output.num_cached_tokens or 0, generation)
        answer.set_result(generation)

    def _fail(self, name: str, error: Exception) -> None:
        answer = self._open.pop(name, None)
        if answer is not None and not answer.done():
            answer.set_exception(error)


def shield_llvmlite() -> None:
    """Let vLLM start in a process that has loaded numba, as environments may.

    When vLLM starts, it reads the `__dict__` of every object in every module. The library object of
    llvmlite, on which numba is built, takes any name for one of its C functions, `__dict__` too.
    """
    ffi: Any = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        ffi.lib._fntab.setdefault("__dict__", {})  # where it looks names up first


def _end(engine: weakref.ref[VLLMEngine]) -> None:
    """End an engine's vLLM before the program ends what vLLM uses.

    vLLM's own handler comes after Lightning's, when there is no process group any more, and cannot
    free memory that sleeps; each ends a program that went well with an error message.
    """
    found = engine()
    if found is None:
        return
    with suppress(Exception):
        if found._asleep:
            found._llm.wake_up()
        found._llm.engine_core.shutdown()


@contextmanager
def _preserved_process_state() -> Iterator[None]:
    """Restore random states and thread settings, which vLLM changes when it starts."""
    warnings.filterwarnings("ignore", message="`torch.distributed.reduce_op` is deprecated")
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        # vLLM initialises torch.distributed for its own use. Lightning then assumes a distributed
        # run and warns about sync_dist.
        warnings.filterwarnings("ignore", message="It is recommended to use .*sync_dist=True")


def _generation(output: Any, policy_version: int) -> Generation:
    (reply,) = output.outputs
    ids = tuple(reply.token_ids)
    logprobs = tuple(step[token].logprob for step, token in zip(reply.logprobs, ids, strict=True))
    finish = "stop" if reply.finish_reason == "stop" else "length"
    return Generation(ids, logprobs, finish, policy_version)
