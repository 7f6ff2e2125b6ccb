"""Samples from the actor's own Hugging Face module, in the same process."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from vagentrl.engine import Engine, Generation, GenerationRequest, Vocabulary
from vagentrl.engines.cached_policy import CachedPolicy
from vagentrl.engines.sampling import sample, uniforms
from vagentrl.errors import ConfigError, EngineError
from vagentrl.types import Finish

# An episode takes a few turns of the event loop from its environment's answer to its next request.
TICKS_BETWEEN_STEPS = 4
# Reading a few prompts costs about as much as a step for everyone: they wait until they are as
# large a share as this of all open requests.
ADMIT_SHARE = 1 / 4


@dataclass(eq=False)
class _Row:
    """A reply in the making.

    Attributes:
        limit: Tokens it may have.
        draws: The randomness of each of them.
    """

    request: GenerationRequest
    answer: asyncio.Future[Generation]
    limit: int
    draws: np.ndarray
    reply: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def finish(self, why: Finish) -> None:
        if not self.answer.done():
            self.answer.set_result(Generation(tuple(self.reply), tuple(self.logprobs), why))


class TransformersEngine(Engine):
    """Continuous batching over the policy itself: no second copy of the weights.

    A reply leaves the batch when it ends and a new request joins between two tokens. Keys and
    values are kept from turn to turn: a turn reads only what it adds to the context.

    Args:
        max_batch: Replies sampled at a time.
        max_sessions: Episodes whose keys and values are kept; the one unused for longest is
            forgotten and, when it comes back, read again.
        prefill_tokens: New tokens, padding included, that one forward pass reads at most; a
            longer prompt is read alone.

    Attributes:
        prefilled_tokens: Prompt tokens read since the engine was made.
        reused_tokens: Prompt tokens that were in the cache already.
    """

    def __init__(
        self, max_batch: int = 256, max_sessions: int = 1024, prefill_tokens: int = 8192
    ) -> None:
        if not 1 <= max_batch <= max_sessions:
            raise ConfigError(
                f"max_batch is {max_batch} and max_sessions {max_sessions}; every reply needs a "
                "session of its own: give 1 <= max_batch <= max_sessions"
            )
        self.max_batch = max_batch
        self.max_sessions = max_sessions
        self.prefill_tokens = prefill_tokens
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self._waiting: deque[_Row] = deque()
        self._active: list[_Row] = []  # row i is in slot i of the cache
        self._pump: asyncio.Task[None] | None = None

    def prepare(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def update_weights(self, policy: nn.Module, version: int) -> None:
        if self._waiting or self._active:
            raise EngineError(
                f"new weights while {len(self._waiting) + len(self._active)} replies are being "
                "sampled; await them first"
            )
        self._policy = CachedPolicy(policy, self._vocabulary, self.max_sessions)
        self._banned = torch.tensor(
            sorted(self._vocabulary.banned_ids), dtype=torch.long, device=self._policy.device
        )
        self.policy_version = version

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check(request)
        room = self._vocabulary.context_length - len(request.prompt_ids)
        limit = min(request.sampling.max_tokens, room)
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Row(request, answer, limit, uniforms(request.seed, limit)))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return await answer

    def release(self, session: int) -> None:
        for row in (*self._waiting, *self._active):
            if row.request.session == session:
                row.answer.cancel()  # leaves with its session before the next step
                return
        self._policy.sessions.release(session)

    def _check(self, request: GenerationRequest) -> None:
        if self.policy_version < 0:
            raise EngineError("no weights to sample from yet; call update_weights first")
        length, room = len(request.prompt_ids), self._vocabulary.context_length
        if not 0 < length < room:
            raise EngineError(
                f"the prompt has {length} tokens and the context holds {room}; a reply needs a "
                "prompt and room for a token: allow fewer turns, shorter observations or a window"
            )
        for row in (*self._waiting, *self._active):
            if row.request.session == request.session and not row.answer.done():
                raise EngineError(
                    f"session {request.session} already awaits a reply; one at a time"
                )

    # ------------------------------------------------------------------------------ the pump

    async def _run(self) -> None:
        """Step while there is work, and let the episodes run in between."""
        try:
            with self._policy.sampling_mode():
                while self._waiting or self._active:
                    for _ in range(TICKS_BETWEEN_STEPS):
                        await asyncio.sleep(0)
                    self._drop_abandoned()
                    started = time.perf_counter()
                    for rows in self._admitted():
                        self._prefill(rows)
                    if self._active:
                        self._decode()
                    self.busy_s += time.perf_counter() - started
        finally:  # nobody may wait for a pump that has stopped
            self._fail([*self._waiting, *self._active], "the engine stopped before the reply ended")
            self._waiting.clear()
            self._active.clear()

    def _drop_abandoned(self) -> None:
        self._waiting = deque(row for row in self._waiting if not row.answer.done())
        for index in reversed(range(len(self._active))):
            if self._active[index].answer.done():
                session = self._active[index].request.session
                self._retire(index)
                self._policy.sessions.release(session)

    def _admitted(self) -> Iterator[list[_Row]]:
        """The waiting rows that join now, in batches of similar length."""
        if len(self._waiting) < ADMIT_SHARE * (len(self._waiting) + len(self._active)):
            return
        count = min(len(self._waiting), self.max_batch - len(self._active))
        rows = [self._waiting.popleft() for _ in range(count)]
        lengths = [self._policy.unread(row.request) for row in rows]
        for batch in _batches(lengths, self.prefill_tokens):
            yield [rows[index] for index in batch]

    def _prefill(self, rows: list[_Row]) -> None:
        requests = [row.request for row in rows]
        context = sum(len(request.prompt_ids) for request in requests)
        unread = sum(map(self._policy.unread, requests))
        first = len(self._active)
        try:
            logits = self._policy.prefill(requests, first)
        except Exception as error:
            self._fail(rows, f"the policy could not read {len(rows)} prompts", error)
            return
        self.prefilled_tokens += unread
        self.reused_tokens += context - unread
        self._active += rows
        self._extend(first, logits)

    def _decode(self) -> None:
        try:
            logits = self._policy.decode([row.reply[-1] for row in self._active])
        except Exception as error:
            self._fail(self._active, f"the policy failed to go on with {len(self._active)} replies", error)
            self._active.clear()
            return
        self._extend(0, logits)

    @torch.inference_mode()
    def _extend(self, first: int, logits: Tensor) -> None:
        """Draw a token for every active row from `first` on; those that end leave."""
        rows = self._active[first:]
        draws = torch.tensor([row.draws[len(row.reply)] for row in rows], device=logits.device)
        ids, logprobs = sample(
            logits.index_fill(1, self._banned, -torch.inf),
            [row.request.sampling for row in rows],
            draws,
        )
        self.sampled_tokens += len(rows)
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            row.reply.append(token)
            row.logprobs.append(logprob)
        for index in reversed(range(first, len(self._active))):
            row = self._active[index]
            stopped = row.reply[-1] in self._vocabulary.stop_ids
            if stopped or len(row.reply) == row.limit:
                self._retire(index)
                row.finish("stop" if stopped else "length")

    def _retire(self, index: int) -> None:
        """Take a row out; the last one takes its place, so that the active slots stay together."""
        self._policy.sessions.swap(index, len(self._active) - 1)
        last = self._active.pop()
        if index < len(self._active):
            self._active[index] = last

    def _fail(self, rows: Sequence[_Row], what: str, cause: Exception | None = None) -> None:
        for row in rows:
            self._policy.sessions.release(row.request.session)
            if not row.answer.done():
                error = EngineError(f"{what}: {cause}" if cause else what)
                error.__cause__ = cause
                row.answer.set_exception(error)


def _batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of prompts to read together: none more than twice as long as another, as padded
    tokens within the budget (a prompt beyond it alone)."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]
        if batch and (
            length > 2 * lengths[batch[0]] + 16 or length * (len(batch) + 1) > budget
        ):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
