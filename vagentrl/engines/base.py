"""The `Engine` interface: token ids in, sampled token ids and log-probs out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, get_args

from vagentrl.errors import ConfigError, EngineError, PartError, seen
from vagentrl.types import Finish, VisionInputs

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import nn


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a reply.

    Args:
        temperature: Divides the logits; 0 samples greedily.
        top_p: Keep the smallest set of tokens whose probabilities sum to at least this; 1 keeps
            all.
        top_k: Number of most likely tokens to keep; 0 keeps all.
        max_tokens: Maximum length of a reply in tokens, end of turn included.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 200

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ConfigError(f"temperature is {self.temperature}; give 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; give a number in (0, 1]; 1 keeps all tokens")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; give 0 (keep all tokens) or a count")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; a reply needs at least 1")

    def in_evaluations(self) -> Sampling:
        """How replies are sampled in evaluations where nothing else is said: at temperature 0.5."""
        return replace(self, temperature=0.5)


@dataclass(frozen=True)
class GenerationRequest:
    """A request to sample one reply.

    Attributes:
        session: Identifies the episode; an engine may keep state (a KV cache) for it from turn to
            turn.
        prompt_ids: The whole context so far, with image tokens already expanded.
        images: All images of the context, in reading order.
        sampling: The sampling settings.
        seed: Random seed of the reply. Seed, weights and context determine the reply, whatever
            else is in the batch.
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
        reply_ids: The sampled tokens, at least one, including a final stop token if there is one.
        logprobs: Log-probs of `reply_ids` under the distribution after temperature and before
            top-p and top-k.
        finish: ``stop`` if the model ended the reply, ``length`` if it hit the token limit.
        policy_version: Version of the weights that sampled the reply. An engine that loads new
            weights in mid-reply gives the oldest version.
    """

    reply_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    policy_version: int


@dataclass(frozen=True)
class Vocabulary:
    """What an engine needs to know about tokens and images.

    Attributes:
        stop_ids: Tokens that end a turn.
        banned_ids: Tokens that are never sampled, such as image tokens: a sampled image token
            would refer to an image that does not exist.
        context_length: Maximum number of tokens in the model's context.
        encode_images: Converts images to the model's vision inputs, all in one row.
    """

    stop_ids: frozenset[int]
    banned_ids: frozenset[int]
    context_length: int
    encode_images: Callable[[Sequence[Image]], VisionInputs]


class Engine(ABC):
    """Samples replies.

    All methods are called from one thread; many coroutines call `generate` concurrently.

    The collector calls the engine itself, which checks what `generate` returns.

    Attributes:
        dtype: Type in which the trainer computes, for an engine with its own copy of the weights;
            None for the type of the weights. The datamodule sets it before `update_weights`.
        samples_from_copy: Whether the engine samples from its own copy of the weights, so that
            the policy can be trained meanwhile.
        policy_version: Version of the weights that replies are sampled from; -1 before the first
            `update_weights`.
        sampled_tokens: Tokens sampled since the engine was created.
        busy_s: Seconds spent computing since the engine was created.
    """

    dtype: torch.dtype | None = None
    samples_from_copy: bool = True
    policy_version: int = -1
    sampled_tokens: int = 0
    busy_s: float = 0.0

    @abstractmethod
    def prepare(self, vocabulary: Vocabulary) -> None:
        """Store the vocabulary. Called once, before the first `update_weights`."""

    @abstractmethod
    def update_weights(self, policy: nn.Module, version: int) -> None:
        """Load the policy's weights and discard the cached state of all sessions.

        Args:
            policy: A Hugging Face model with a language-model head.
            version: The new `policy_version`.
        """

    @abstractmethod
    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one reply.

        Raises:
            EngineError: When this request cannot be answered; other requests continue.
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

    def release(self, session: int) -> None:  # noqa: B027 (most engines keep no session state)
        """Discard the cached state of a session whose episode has ended."""

    def counts(self) -> dict[str, float]:
        """Return what was counted since the last `update_weights`, by the name of its metric.

        The sum over all ranks is logged with the iteration.
        """
        return {}

    def rest(self) -> None:  # noqa: B027 (most engines hold no memory to free)
        """Free memory while the policy is trained.

        Nothing is sampled between this call and the next `update_weights`.
        """


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


def check_request(
    request: GenerationRequest, vocabulary: Vocabulary, *, reads_images: bool
) -> None:
    """Check that a request can be answered.

    Raises:
        EngineError: When the prompt is empty or fills the context, or has images for a policy that
            reads only text.
    """
    length, context = len(request.prompt_ids), vocabulary.context_length
    if not 0 < length < context:
        raise EngineError(
            f"a prompt of {length} tokens leaves no room to reply in a context of {context} "
            "tokens (a prompt needs at least 1 token, and the reply too): allow fewer turns, "
            "shorter observations or a window"
        )
    if request.images and not reads_images:
        raise EngineError(
            f"a prompt shows {len(request.images)} images to a policy that reads only text; "
            "use a vision-language model or render the observations as text"
        )
