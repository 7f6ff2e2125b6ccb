"""Replies from a script: for tests, and to walk through an environment without a model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vagentrl.engines.base import Engine, Generation, GenerationRequest, Vocabulary
from vagentrl.errors import EngineError

if TYPE_CHECKING:
    from torch import nn

Line = str | Sequence[int] | Exception


class ScriptedEngine(Engine):
    """Says what it is told to.

    A line is a text, which `encode` turns into tokens; or the tokens themselves, for a reply that
    lacks an end of turn; or an exception, which fails the request. Lines are cut at the
    request's `max_tokens`. A reply that does not end in a stop token finishes by `length`.

    Args:
        script: The lines of an episode, one a turn and from the start again when they run out;
            or a function from the request to the line.
        encode: A line of text to tokens, the end of turn included.
        delay_s: Seconds that a reply takes, or a function from the request to them.
        logprob: What every token claims to have been sampled with.

    Attributes:
        requests: Every request, in the order of arrival.
        released: Every session that was released, in order.
    """

    def __init__(
        self,
        script: Sequence[Line] | Callable[[GenerationRequest], Line],
        encode: Callable[[str], Sequence[int]],
        delay_s: float | Callable[[GenerationRequest], float] = 0.0,
        logprob: float = -1.0,
    ) -> None:
        self.requests: list[GenerationRequest] = []
        self.released: list[int] = []
        self._script = script
        self._encode = encode
        self._delay_s = delay_s
        self._logprob = logprob
        self._turn = Counter[int]()

    def prepare(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def update_weights(self, policy: nn.Module, version: int) -> None:
        self.policy_version = version

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        line, version = self._line(request), self.policy_version
        await asyncio.sleep(self._delay_s(request) if callable(self._delay_s) else self._delay_s)
        if isinstance(line, Exception):
            raise EngineError(f"the script fails here: {line}") from line
        ids = tuple(self._encode(line) if isinstance(line, str) else line)
        ids = ids[: request.sampling.max_tokens]
        self.sampled_tokens += len(ids)
        finish = "stop" if ids and ids[-1] in self._vocabulary.stop_ids else "length"
        return Generation(ids, (self._logprob,) * len(ids), finish, version)

    def release(self, session: int) -> None:
        self.released.append(session)
        del self._turn[session]

    def _line(self, request: GenerationRequest) -> Line:
        if callable(self._script):
            return self._script(request)
        turn = self._turn[request.session]
        self._turn[request.session] += 1
        return self._script[turn % len(self._script)]
