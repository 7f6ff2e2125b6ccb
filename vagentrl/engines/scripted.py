"""An engine that replies from a script, for tests and for trying environments without a model."""

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
    """Replies with the lines of a script.

    A line is a text, which `encode` converts to tokens; a sequence of token ids, for instance for
    a reply without an end of turn; or an exception, which fails the request. Lines are truncated
    to the request's `max_tokens`. A reply that does not end in a stop token has the finish
    ``length``.

    Args:
        script: The lines of an episode, one per turn, repeated from the start when they run out;
            or a function that maps a request to its line.
        encode: Converts text to token ids, end of turn included.
        delay_s: Seconds before each reply, or a function that maps a request to its delay.
        logprob: The log-prob reported for every token.

    Attributes:
        requests: Every request, in order of arrival.
        released: Every released session, in order.
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
