"""Several `TransformersEngine`, each in its own process, for small models on a CPU."""

from __future__ import annotations

import asyncio
import atexit
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
from vagentrl.engines.room import place_with_room, shared_memory
from vagentrl.engines.transformers import TransformersEngine
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.models.replica import Replica
from vagentrl.models.sharded import full_state

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel


class _Reply(NamedTuple):
    """A worker's reply to the request with this number, and the worker's counts so far."""

    number: int
    generation: Generation | None
    error: EngineError | EngineDead | None
    busy_s: float
    prefilled_tokens: int
    reused_tokens: int


NO_REPLY = _Reply(-1, None, None, 0.0, 0, 0)


@dataclass
class _Worker:
    """The engine's handle on one sampling process.

    Attributes:
        connection: The engine's end of the pipe.
        process: The process.
        listener: The thread that reads the replies.
        open: The future of every request that awaits its reply, by number.
        sent_images: The images of each session that the process has.
        latest: The last reply from the process.
    """

    connection: Connection
    process: Any
    listener: threading.Thread = field(init=False)
    open: dict[int, Future[Generation]] = field(default_factory=dict)
    sent_images: dict[int, list[Image]] = field(default_factory=dict)
    latest: _Reply = NO_REPLY


class ReplicatedEngine(Engine):
    """Several `TransformersEngine` in parallel, each in a process with one thread.

    More threads do not speed up a small model, but more processes do. All turns of an episode go
    to the same process, which has the episode's keys and values in its cache. The processes read
    one copy of the weights in shared memory, so the policy can be trained meanwhile
    (`data.staleness`).

    Args:
        processes: Number of processes; None for one per core available to this process.
        max_batch: Maximum number of replies sampled at a time in each process.
        max_sessions: Maximum number of sessions whose keys and values each process keeps.

    Attributes:
        prefilled_tokens: Prompt tokens read since the engine was created.
        reused_tokens: Prompt tokens that were already in a cache.
    """

    def __init__(
        self, processes: int | None = None, max_batch: int = 256, max_sessions: int = 1024
    ) -> None:
        if processes is not None and processes < 1:
            raise ConfigError(f"processes is {processes}; give at least 1")
        self.count = processes or len(os.sched_getaffinity(0))
        self._settings: dict[str, Any] = {"max_batch": max_batch, "max_sessions": max_sessions}
        TransformersEngine(**self._settings)  # raises ConfigError here, not in a worker
        self._numbers = itertools.count()
        self._processes: list[_Worker] = []
        self._policy: Replica | None = None

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
            self._policy = _shared(Replica.of(model))
            self._processes = [self._start(index) for index in range(self.count)]
            # A listener that still ran while the interpreter ends could abort the program.
            atexit.register(self.close)
        else:
            for name, weight in full_state(model):
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
        self._send(process, (number, *_without_images(request, process.sent_images)))
        generation = await asyncio.wrap_future(answer)
        self.sampled_tokens += len(generation.reply_ids)
        return generation

    def release(self, session: int) -> None:
        if self._processes:
            process = self._processes[session % self.count]
            process.sent_images.pop(session, None)
            self._send(process, ("release", session))

    def close(self) -> None:
        """End the processes, which otherwise end with the program; new weights start others."""
        atexit.unregister(self.close)
        for process in self._processes:
            process.process.terminate()
        for process in self._processes:
            process.process.join()
            process.listener.join()  # it ends with the process
            process.connection.close()
        self._processes.clear()
        self._policy = None

    def _start(self, index: int) -> _Worker:
        # Spawn, not fork: torch's thread pools do not work in a forked process.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self._vocabulary, self._policy, self._settings)
        worker = context.Process(target=_serve, args=arguments, name=f"sample-{index}", daemon=True)
        worker.start()
        theirs.close()
        process = _Worker(ours, worker)
        process.listener = threading.Thread(
            target=self._listen, args=(process,), name=worker.name, daemon=True
        )
        process.listener.start()
        return process

    def _send(self, process: _Worker, message: Any) -> None:
        try:
            process.connection.send(message)
        except OSError as error:
            raise _worker_died(process) from error

    def _listen(self, process: _Worker) -> None:
        """Resolve the futures of a process's requests as replies arrive. Runs in a thread."""
        while True:
            try:
                reply: _Reply = process.connection.recv()
            except (EOFError, OSError):
                for answer in process.open.values():
                    if answer.set_running_or_notify_cancel():
                        answer.set_exception(_worker_died(process))
                process.open.clear()
                return
            self.busy_s += (reply.busy_s - process.latest.busy_s) / self.count
            process.latest = reply
            answer = process.open.pop(reply.number)
            if not answer.set_running_or_notify_cancel():
                continue  # the request was cancelled
            if reply.generation is not None:
                answer.set_result(reply.generation)
            else:
                answer.set_exception(reply.error)


def _without_images(
    request: GenerationRequest, sent_images: dict[int, list[Image]]
) -> tuple[GenerationRequest, tuple[int, ...], list[Image]]:
    """Split the images off a request, so that every image is sent to the process once.

    Returns:
        The request without images, the indices of its images among the session's images, and
        the images that have not been sent yet.
    """
    known = sent_images.setdefault(request.session, [])
    before = len(known)
    numbers = {id(image): number for number, image in enumerate(known)}
    for image in request.images:
        if id(image) not in numbers:
            numbers[id(image)] = len(known)
            known.append(image)
    wanted = tuple(numbers[id(image)] for image in request.images)
    return replace(request, images=()), wanted, known[before:]


def _worker_died(process: _Worker) -> EngineDead:
    process.process.join(1)
    return EngineDead(
        f"the sampling process {process.process.name} has ended (exit code "
        f"{process.process.exitcode}; -9 usually means that memory ran out): set fewer "
        "`processes`, or resume the run from its last checkpoint with --ckpt_path"
    )


def _shared(replica: Replica) -> Replica:
    """Move a replica's weights to memory that other processes can map."""
    if (shared := shared_memory()) is not None:  # a write beyond its end kills the process
        size = sum(weight.nbytes for weight in replica.weights.values())
        place_with_room([shared], size, "the copy of the weights for the sampling processes")
    for weight in replica.weights.values():
        weight.share_memory_()
    return replica


def _serve(
    connection: Connection, vocabulary: Vocabulary, policy: Replica, settings: dict[str, Any]
) -> None:
    """Answer requests until the engine closes the connection. Runs in a worker process."""
    torch.set_num_threads(1)
    engine, model = TransformersEngine(**settings), policy.build()
    engine.prepare(vocabulary)
    loop = asyncio.new_event_loop()
    images: defaultdict[int, list[Image]] = defaultdict(list)
    tasks: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references

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
    os._exit(0)  # a normal exit would hang: the listener thread waits for the next message
