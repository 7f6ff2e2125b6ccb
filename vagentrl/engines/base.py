"""What an engine is: it samples replies from the policy, token in, token out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, get_args

from vagentrl.errors import ConfigError, EngineError, PartError, seen
from vagentrl.types import Finish, VisionInputs

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn


@dataclass(frozen=True)
class Sampling:
    """How replies are sampled.

    Args:
        temperature: Divides the logits; 0 is greedy.
        top_p: Smallest set of tokens whose probabilities sum to at least this; 1 keeps all.
        top_k: Number of most likely tokens to keep; 0 keeps all.
        max_tokens: Tokens a reply may have, end of turn included.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 200

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ConfigError(f"temperature is {self.temperature}; give 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; give a share in (0, 1], 1 keeps all tokens")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; give 0 (keep all tokens) or a count")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; a reply needs at least 1")


@dataclass(frozen=True)
class GenerationRequest:
    """One reply to sample.

    Attributes:
        session: Names the episode; an engine may keep state (a KV cache) from turn to turn.
        prompt_ids: The whole context so far, image tokens already expanded.
        images: All images of the context, in reading order.
        sampling: How to sample.
        seed: Decides the reply together with the weights and the context, whatever else is
            being sampled at the same time.
    """

    session: int
    prompt_ids: tuple[int, ...]
    images: tuple[Image, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class Generation:
    """A sampled reply.

    Attributes:
        reply_ids: The sampled tokens, at least one, a stop token included.
        logprobs: Log-probs of `reply_ids`, natural logarithms, under the tempered but not truncated
            (top-p, top-k) distribution.
        finish: ``stop`` when the model ended the reply, ``length`` when the token limit did.
        policy_version: Version of the weights that sampled the reply. An engine that takes new
            weights in mid-reply gives the oldest.
    """

    reply_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    policy_version: int


@dataclass(frozen=True)
class Vocabulary:
    """What an engine must know of the tokens.

    Attributes:
        stop_ids: Tokens that end a turn.
        banned_ids: Tokens that are never sampled: a sampled image token would ask for an image
            that does not exist.
        context_length: Tokens that the model can read at most.
        encode_images: Images to model inputs, all in one row.
    """

    stop_ids: frozenset[int]
    banned_ids: frozenset[int]
    context_length: int
    encode_images: Callable[[Sequence[Image]], VisionInputs]


class Engine(ABC):
    """Samples replies. All methods are called from one thread, `generate` from many coroutines.

    The collector calls the engine itself, which checks what `generate` returns.

    Attributes:
        samples_apart: Whether it samples from a copy of the weights, so that the policy may learn
            meanwhile.
        policy_version: Version of the weights that replies are sampled from; -1 before the first.
        sampled_tokens: Tokens sampled since the engine was made.
        busy_s: Seconds spent computing since the engine was made.
    """

    samples_apart: bool = True
    policy_version: int = -1
    sampled_tokens: int = 0
    busy_s: float = 0.0

    @abstractmethod
    def prepare(self, vocabulary: Vocabulary) -> None:
        """Called once, before anything is sampled."""

    @abstractmethod
    def update_weights(self, policy: nn.Module, version: int) -> None:
        """Sample from the weights of this policy from now on; kept state of sessions is void.

        Args:
            policy: A Hugging Face model with a language-model head.
            version: Becomes `policy_version`.
        """

    @abstractmethod
    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one reply.

        Raises:
            EngineError: When the request cannot be answered; other requests go on.
            EngineDead: When no request can be answered any more, which ends the run.
        """

    async def __call__(self, request: GenerationRequest) -> Generation:
        """The reply that the subclass samples, checked."""
        answer = self.generate(request)
        if not isinstance(answer, Awaitable):
            wanted = "write it as `async def generate`"
            raise PartError.returned(self, "generate", answer, wanted)
        generation = await answer
        if not isinstance(generation, Generation):
            wanted = "return Generation(reply_ids, logprobs, finish, policy_version)"
            raise PartError.returned(self, "generate", generation, wanted)
        problem = _problem(generation)
        if problem is not None:
            raise PartError(f"{type(self).__name__}.generate returned a Generation {problem}")
        return generation

    def release(self, session: int) -> None:  # noqa: B027 (most engines keep nothing)
        """The episode is over: forget what was kept for it."""

    def rest(self) -> None:  # noqa: B027 (most engines need nothing back)
        """Nothing is sampled before the next `update_weights`: memory may be given back."""


def _problem(generation: Generation) -> str | None:
    """What a collector could not use; None when all is right."""
    ids, logprobs = generation.reply_ids, generation.logprobs
    for name, value in (("reply_ids", ids), ("logprobs", logprobs)):
        if not isinstance(value, tuple):
            return f"whose {name} are {seen(value)}; give a tuple of numbers"
    if not ids or len(ids) != len(logprobs):
        return (
            f"of {len(ids)} tokens with {len(logprobs)} log-probs; give at least one token, and a "
            "log-prob for each"
        )
    if not all(isinstance(token, int) for token in ids):
        return f"whose reply_ids are {seen(ids)}; give token ids, which are ints"
    if not all(isinstance(each, Real) and -math.inf < each < _ROUNDING for each in logprobs):
        return (
            f"whose logprobs are {seen(logprobs)}; give logarithms of probabilities, which are "
            "finite and at most 0"
        )
    if generation.finish not in get_args(Finish):
        return f"whose finish is {generation.finish!r}; give 'stop' or 'length'"
    return None


_ROUNDING = 1e-3
"""How far a log-prob may lie above 0: half precision rounds that coarsely."""


def check_request(request: GenerationRequest, vocabulary: Vocabulary, *, sees: bool) -> None:
    """Raises:
    EngineError: When the prompt leaves no room, or shows images to a policy that sees none.
    """
    length, context = len(request.prompt_ids), vocabulary.context_length
    if not 0 < length < context:
        raise EngineError(
            f"a prompt of {length} tokens leaves no room to reply in a context of {context} "
            "(or nothing to reply to): allow fewer turns, shorter observations or a window"
        )
    if request.images and not sees:
        raise EngineError(
            f"a prompt shows {len(request.images)} images to a policy that reads only text; "
            "take a vision-language model or render the observations as text"
        )
