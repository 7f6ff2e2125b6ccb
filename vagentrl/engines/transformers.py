"""An engine that samples from the actor's Hugging Face module in the trainer's process."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from vagentrl.engines.base import Engine, Generation, GenerationRequest, Vocabulary, check_request
from vagentrl.engines.cached_policy import CachedPolicy
from vagentrl.engines.sampling import sample, uniforms
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.models.replica import Replica
from vagentrl.models.sharded import full_state, is_sharded
from vagentrl.types import Finish

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Event loop iterations between two decoding steps: an episode needs a few of them to get from the
# environment's answer to its next request.
TICKS_BETWEEN_STEPS = 4
# Decoding pauses while prompts are read, and reading one prompt takes almost as long as reading
# several together. New requests therefore wait until they are at least this share of all requests.
# Measured: 0 is up to 30 % slower; 1/8 to 1/2 make no difference.
ADMIT_SHARE = 1 / 8


@dataclass(eq=False)
class _Row:
    """A request and its reply so far: one row of the batch.

    Attributes:
        request: The request.
        answer: Future that receives the finished reply.
        limit: Maximum length of the reply in tokens.
        draws: Random number of each token.
        policy_version: Version of the weights that sample the reply.
        reply: The tokens sampled so far.
        logprobs: Their log-probs.
    """

    request: GenerationRequest
    answer: asyncio.Future[Generation]
    limit: int
    draws: list[float]
    policy_version: int
    reply: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def finish(self, why: Finish) -> None:
        if not self.answer.done():
            reply, logprobs = tuple(self.reply), tuple(self.logprobs)
            self.answer.set_result(Generation(reply, logprobs, why, self.policy_version))

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class TransformersEngine(Engine):
    """Continuous batching with the policy itself, or with a copy of it.

    A reply leaves the batch when it ends, and new requests join between two decoding steps. Keys
    and values are kept from turn to turn, so a turn reads only the tokens it adds to the context.

    Args:
        max_batch: Maximum number of replies sampled at a time.
        max_sessions: Maximum number of episodes whose keys and values are kept. Beyond it the
            least recently used one is evicted; its context is read again if it continues.
        prefill_tokens: Maximum number of new tokens, padding included, that one forward pass
            reads; a longer prompt is read alone.
        own_copy: Sample from a copy of the weights, which optimizer steps do not change.
            `data.staleness` needs it. Weights that the ranks share (FSDP2) are always copied,
            as a whole on each rank.

    Attributes:
        prefilled_tokens: Prompt tokens read since the engine was created.
        reused_tokens: Prompt tokens that were already in the cache.
    """

    def __init__(
        self,
        max_batch: int = 256,
        max_sessions: int = 1024,
        prefill_tokens: int = 8192,
        own_copy: bool = False,
    ) -> None:
        if not 1 <= max_batch <= max_sessions:
            raise ConfigError(
                f"max_batch is {max_batch} and max_sessions is {max_sessions}; every reply needs "
                "its own session: give 1 <= max_batch <= max_sessions"
            )
        self.max_batch = max_batch
        self.max_sessions = max_sessions
        self.prefill_tokens = prefill_tokens
        self.samples_from_copy = own_copy
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self._waiting: deque[_Row] = deque()
        self._active: list[_Row] = []  # row i is in slot i of the cache
        self._task: asyncio.Task[None] | None = None

    def prepare(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def update_weights(self, policy: nn.Module, version: int) -> None:
        if self._waiting or self._active:
            raise EngineError(
                f"new weights while {len(self._waiting) + len(self._active)} replies are being "
                "sampled; await them first"
            )
        model = cast("PreTrainedModel", policy)
        if self.samples_from_copy or is_sharded(model):
            model = self._copy(model)
        self._policy = CachedPolicy(model, self._vocabulary, self.max_sessions)
        banned = sorted(self._vocabulary.banned_ids)
        self._banned = torch.tensor(banned, dtype=torch.long, device=self._policy.device)
        self.policy_version = version

    def _copy(self, policy: PreTrainedModel) -> PreTrainedModel:
        if self.policy_version < 0:
            if is_sharded(policy):  # FSDP2's modules cannot be copied
                return Replica.of(policy).build().to(policy.device)  # pyright: ignore
            return copy.deepcopy(policy).requires_grad_(False)
        own = self._policy.policy.state_dict()
        for name, weight in full_state(policy):
            own[name].copy_(weight)
        return self._policy.policy

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check(request)
        room = self._vocabulary.context_length - len(request.prompt_ids)
        limit = min(request.sampling.max_tokens, room)
        answer = asyncio.get_running_loop().create_future()
        draws = uniforms(request.seed, limit)
        self._waiting.append(_Row(request, answer, limit, draws, self.policy_version))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await answer

    def release(self, session: int) -> None:
        rows = self._rows_of(session)
        for row in rows:  # `_drop_abandoned` removes the rows and their session
            row.fail(EngineError("the session was released in mid-reply"))
        if not rows and self.policy_version >= 0:
            self._policy.sessions.release(session)

    def _rows_of(self, session: int) -> list[_Row]:
        rows = (*self._waiting, *self._active)
        return [row for row in rows if row.request.session == session]

    def _check(self, request: GenerationRequest) -> None:
        if self.policy_version < 0:
            raise EngineError("no weights to sample from yet; call update_weights first")
        reads_images = self._policy.image_token_id is not None
        check_request(request, self._vocabulary, reads_images=reads_images)
        if not all(row.answer.done() for row in self._rows_of(request.session)):
            raise EngineError(
                f"session {request.session} already awaits a reply; send one request at a time"
            )

    # ------------------------------------------------------------------- the decoding task

    async def _run(self) -> None:
        """Decode while there are requests, and let the episodes run between two steps."""
        try:
            with self._policy.sampling_mode():
                while self._waiting or self._active:
                    for _ in range(TICKS_BETWEEN_STEPS):
                        await asyncio.sleep(0)
                    self._drop_abandoned()
                    started = time.perf_counter()
                    self._admit()
                    self._decode()
                    self.busy_s += time.perf_counter() - started
        except Exception as error:  # raised by every `generate` that awaits a reply
            dead = EngineDead(
                f"sampling failed while {len(self._active)} replies were in progress: {error!r}. "
                "The current batch is lost; resume the run from its last checkpoint with "
                "--ckpt_path. If memory ran out, lower max_batch or max_sessions"
            )
            dead.__cause__ = error
            self._stop(dead)
        except BaseException as error:  # without this, `generate` would wait forever
            self._stop(EngineError(f"sampling was interrupted: {error!r}"))
            raise

    def _stop(self, error: Exception) -> None:
        rows = [*self._waiting, *self._active]
        self._waiting.clear()
        self._active.clear()
        self._fail(rows, error)

    def _drop_abandoned(self) -> None:
        abandoned = [row for row in self._waiting if row.answer.done()]
        for row in abandoned:
            self._waiting.remove(row)
        for index in reversed(range(len(self._active))):
            if self._active[index].answer.done():
                abandoned.append(self._remove(index))
        for row in abandoned:
            self._policy.sessions.release(row.request.session)

    def _admit(self) -> None:
        waiting = len(self._waiting)
        if waiting < ADMIT_SHARE * (waiting + len(self._active)):
            return
        rows = [self._waiting[i] for i in range(min(waiting, self.max_batch - len(self._active)))]
        unread = [self._policy.unread(row.request) for row in rows]
        for batch in _batches_by_length(unread, self.prefill_tokens):
            self._prefill([rows[index] for index in batch])
        for _ in rows:
            self._waiting.popleft()

    def _prefill(self, rows: Sequence[_Row]) -> None:
        requests = [row.request for row in rows]
        unread = sum(self._policy.unread(request) for request in requests)
        first = len(self._active)
        try:
            logits = self._policy.prefill(requests, first)
        except Exception as error:
            self._prefill_one_by_one(rows, error)
            return
        self.prefilled_tokens += unread
        self.reused_tokens += sum(len(request.prompt_ids) for request in requests) - unread
        self._active += rows
        self._sample_tokens(first, logits)

    def _prefill_one_by_one(self, rows: Sequence[_Row], error: Exception) -> None:
        """Read the prompts of a failed batch separately, so that only the bad one fails."""
        if isinstance(error, torch.AcceleratorError):
            raise error  # the device failed, so every prompt would
        if len(rows) == 1:
            refused = EngineError(f"the policy could not read the prompt: {error}")
            refused.__cause__ = error
            self._fail(rows, refused)
            return
        for row in rows:
            self._policy.sessions.release(row.request.session)
        for row in rows:
            self._prefill([row])

    def _decode(self) -> None:
        if self._active:
            logits = self._policy.decode([row.reply[-1] for row in self._active])
            self._sample_tokens(0, logits)

    @torch.inference_mode()
    def _sample_tokens(self, first: int, logits: Tensor) -> None:
        """Sample a token for every active row from `first` on, and remove finished rows."""
        rows = self._active[first:]
        allowed = logits.index_fill(1, self._banned, -torch.inf)
        draws = [row.draws[len(row.reply)] for row in rows]
        ids, logprobs = sample(
            allowed,
            [row.request.sampling for row in rows],
            torch.tensor(draws, dtype=torch.float64, device=logits.device),
        )
        self.sampled_tokens += len(rows)
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            row.reply.append(token)
            row.logprobs.append(logprob)
        for index in reversed(range(first, len(self._active))):
            row = self._active[index]
            stopped = row.reply[-1] in self._vocabulary.stop_ids
            if stopped or len(row.reply) == row.limit:
                self._remove(index).finish("stop" if stopped else "length")

    def _remove(self, index: int) -> _Row:
        """Remove an active row; the last row takes its slot, so that no slot is unused."""
        last = len(self._active) - 1
        self._policy.sessions.swap(index, last)
        self._active[index], self._active[last] = self._active[last], self._active[index]
        return self._active.pop()

    def _fail(self, rows: Sequence[_Row], error: Exception) -> None:
        for row in rows:
            self._policy.sessions.release(row.request.session)
            row.fail(error)


def _batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group prompts of similar lengths into batches and yield their indices.

    A batch, padded to its longest prompt, has at most `budget` tokens (unless it is one prompt).
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        longest = lengths[index]
        dissimilar = longest > 16 + 2 * lengths[batch[0]] if batch else False
        if batch and (dissimilar or longest * (len(batch) + 1) > budget):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
