"""The Transformers engine in several processes, one to a core: for small models on a CPU."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import threading
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from vagentrl.engines.base import Engine, Generation, GenerationRequest, Vocabulary
from vagentrl.engines.transformers import TransformersEngine
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.models.head import head_dtype_of, set_head_dtype
from vagentrl.models.load import freeze_vision_tower

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel


class _Policy(NamedTuple):
    """A policy without weights of its own: they are in memory that all processes share."""

    kind: type[PreTrainedModel]
    config: Any
    adapter: Any
    vision_is_frozen: bool
    weights: dict[str, torch.Tensor]

    @classmethod
    def of(cls, policy: PreTrainedModel) -> _Policy:
        visual = [p for name, p in policy.named_parameters() if "visual." in name]
        weights = {name: w.detach().cpu().clone() for name, w in policy.state_dict().items()}
        adapter = next(iter(policy.peft_config.values())) if policy._hf_peft_config_loaded else None
        for weight in weights.values():
            weight.share_memory_()
        frozen = bool(visual) and not any(p.requires_grad for p in visual)
        return cls(type(policy), policy.config, adapter, frozen, weights)

    def build(self) -> PreTrainedModel:
        policy: Any = self.kind(self.config)
        if (head_dtype := head_dtype_of(self.config)) is not None:
            set_head_dtype(policy, head_dtype)
        if self.adapter is not None:
            policy.add_adapter(self.adapter)
        policy.load_state_dict(self.weights, assign=True)
        policy.requires_grad_(False).eval()
        if self.vision_is_frozen:
            freeze_vision_tower(policy)
        return policy


class _Reply(NamedTuple):
    """What a process answers to the request of this number."""

    number: int
    generation: Generation | None
    error: EngineError | EngineDead | None
    busy_s: float
    prefilled_tokens: int
    reused_tokens: int


NOTHING_YET = _Reply(-1, None, None, 0.0, 0, 0)


@dataclass
class _Process:
    """A process as the engine sees it."""

    connection: Connection
    process: Any
    open: dict[int, Future[Generation]] = field(default_factory=dict)
    shown: dict[int, list[Image]] = field(default_factory=dict)
    """Images of each session that the process has."""
    latest: _Reply = NOTHING_YET


class ReplicatedEngine(Engine):
    """Several `TransformersEngine` side by side, each in a process with one thread.

    A small model does not get faster with more threads, but with more processes it does. Each
    episode stays with one of them, so that its keys and values are there. They read one copy of the
    weights, in shared memory; the policy may learn meanwhile (`data.staleness`).

    Args:
        processes: How many; None: as many as this process may use cores.
        max_batch: Replies sampled at a time, in each process.
        max_sessions: Episodes whose keys and values are kept, in each process.

    Attributes:
        prefilled_tokens: Prompt tokens read since the engine was made.
        reused_tokens: Prompt tokens that were in a cache already.
    """

    def __init__(
        self, processes: int | None = None, max_batch: int = 256, max_sessions: int = 1024
    ) -> None:
        if processes is not None and processes < 1:
            raise ConfigError(f"processes is {processes}; give at least 1")
        self.count = processes or len(os.sched_getaffinity(0))
        self._settings: dict[str, Any] = {"max_batch": max_batch, "max_sessions": max_sessions}
        TransformersEngine(**self._settings)  # wrong settings show here
        self._numbers = itertools.count()
        self._processes: list[_Process] = []
        self._policy: _Policy | None = None

    @property
    def prefilled_tokens(self) -> int:
        return sum(process.latest.prefilled_tokens for process in self._processes)

    @property
    def reused_tokens(self) -> int:
        return sum(process.latest.reused_tokens for process in self._processes)

    def prepare(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def update_weights(self, policy: nn.Module, version: int) -> None:
        if busy := sum(len(process.open) for process in self._processes):
            raise EngineError(f"new weights while {busy} replies are being sampled; await them")
        model = cast("PreTrainedModel", policy)
        if self._policy is None:
            self._policy = _Policy.of(model)
            self._processes = [self._start(index) for index in range(self.count)]
        else:
            for name, weight in model.state_dict().items():
                self._policy.weights[name].copy_(weight)
        for process in self._processes:
            self._send(process, version)
        self.policy_version = version

    async def generate(self, request: GenerationRequest) -> Generation:
        if not self._processes:
            raise EngineError("no weights to sample from yet; call update_weights first")
        process = self._processes[request.session % self.count]
        number = next(self._numbers)
        answer = process.open[number] = Future()
        self._send(process, (number, *_without_images(request, process.shown)))
        generation = await asyncio.wrap_future(answer)
        self.sampled_tokens += len(generation.reply_ids)
        return generation

    def release(self, session: int) -> None:
        if self._processes:
            process = self._processes[session % self.count]
            process.shown.pop(session, None)
            self._send(process, ("release", session))

    def close(self) -> None:
        """End the processes; they end with this one anyway."""
        for process in self._processes:
            process.connection.close()
        self._processes.clear()

    def _start(self, index: int) -> _Process:
        # not forked: torch's threads do not survive that
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self._vocabulary, self._policy, self._settings)
        worker = context.Process(target=_serve, args=arguments, name=f"sample-{index}", daemon=True)
        worker.start()
        theirs.close()
        process = _Process(ours, worker)
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _send(self, process: _Process, message: Any) -> None:
        try:
            process.connection.send(message)
        except OSError as error:
            raise _ended(process) from error

    def _listen(self, process: _Process) -> None:
        """Hand out a process's replies as they come; in a thread of its own."""
        while True:
            try:
                reply: _Reply = process.connection.recv()
            except (EOFError, OSError):
                for answer in process.open.values():
                    if answer.set_running_or_notify_cancel():
                        answer.set_exception(_ended(process))
                process.open.clear()
                return
            self.busy_s += (reply.busy_s - process.latest.busy_s) / self.count
            process.latest = reply
            answer = process.open.pop(reply.number)
            if not answer.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            if reply.generation is not None:
                answer.set_result(reply.generation)
            else:
                answer.set_exception(reply.error)


def _without_images(
    request: GenerationRequest, shown: dict[int, list[Image]]
) -> tuple[GenerationRequest, tuple[int, ...], list[Image]]:
    """A request, which of its session's images it shows, and those that are new."""
    known = shown.setdefault(request.session, [])
    before = len(known)
    numbers = {id(image): number for number, image in enumerate(known)}
    for image in request.images:
        if id(image) not in numbers:
            numbers[id(image)] = len(known)
            known.append(image)
    wanted = tuple(numbers[id(image)] for image in request.images)
    return replace(request, images=()), wanted, known[before:]


def _ended(process: _Process) -> EngineDead:
    process.process.join(1)
    return EngineDead(
        f"the sampling process {process.process.name} has ended (exit code "
        f"{process.process.exitcode}; -9 is mostly a lack of memory): give fewer `processes`, or "
        "resume the run from its last checkpoint with --ckpt_path"
    )


def _serve(
    connection: Connection, vocabulary: Vocabulary, policy: _Policy, settings: dict[str, Any]
) -> None:
    """What a process does: answer requests until nobody is there to ask."""
    torch.set_num_threads(1)
    engine, model = TransformersEngine(**settings), policy.build()
    engine.prepare(vocabulary)
    loop = asyncio.new_event_loop()
    images: defaultdict[int, list[Image]] = defaultdict(list)
    tasks: set[asyncio.Task[None]] = set()  # the loop itself would let them go

    async def answer(number: int, request: GenerationRequest) -> None:
        generation, problem = None, None
        try:
            generation = await engine.generate(request)
        except (EngineError, EngineDead) as error:
            problem = error
        counts = (engine.busy_s, engine.prefilled_tokens, engine.reused_tokens)
        connection.send(_Reply(number, generation, problem, *counts))

    def handle(message: Any) -> None:
        match message:
            case int() as version:
                engine.update_weights(model, version)
            case "release", session:
                engine.release(session)
                images.pop(session, None)
            case number, request, wanted, new:
                known = images[request.session]
                known += new
                request = replace(request, images=tuple(known[index] for index in wanted))
                task = loop.create_task(answer(number, request))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    def listen() -> None:
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                loop.call_soon_threadsafe(loop.stop)
                return
            loop.call_soon_threadsafe(partial(handle, message))

    threading.Thread(target=listen, daemon=True).start()
    loop.run_forever()
    os._exit(0)  # threads that wait for the next message would spoil an orderly end
