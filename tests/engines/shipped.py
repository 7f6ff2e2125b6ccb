"""The tiny models that ship with the project, and engines and requests for them."""

import asyncio
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import PreTrainedModel

from vagentrl.contexts import FullHistory
from vagentrl.engines import TransformersEngine, VLLMEngine
from vagentrl.engines.base import Engine, Generation, GenerationRequest, Sampling
from vagentrl.models.load import checkpoint_path
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import IMAGE_PLACEHOLDER, Observation

INSTALLED = find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not INSTALLED, reason="vLLM is not installed (docs/engines.md)")
TEXT, IMAGES = "tiny-sokoban-text", "tiny-sokoban-vlm"
CONTEXT = 512
SETTINGS: dict[str, Any] = {"enforce_eager": True, "max_num_seqs": 32, "kv_cache_gb": 0.125}


@cache
def renderer(model: str) -> Renderer:
    return Renderer.from_pretrained(checkpoint_path(model))


@cache
def shared_engine(model: str) -> VLLMEngine:
    engine = VLLMEngine(**SETTINGS)
    engine.prepare(renderer(model).vocabulary(CONTEXT))
    return engine


def engine_of(model: str, policy: PreTrainedModel, version: int = 0) -> VLLMEngine:
    engine = shared_engine(model)
    engine.update_weights(policy, version)
    return engine


def reference_engine(model: str, policy: PreTrainedModel) -> TransformersEngine:
    engine = TransformersEngine()
    engine.prepare(renderer(model).vocabulary(CONTEXT))
    engine.update_weights(policy, 0)
    return engine


def picture(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (84, 84, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def observation(model: str, seed: int) -> Observation:
    if model == TEXT:
        return Observation(text=f"######\n#__{'OX'[seed % 2]}_#\n#_P__#\n######  {seed}")
    return Observation(text=f"{IMAGE_PLACEHOLDER} {seed}", images=(picture(seed),))


def request_of(model: str, session: int, **sampling: Any) -> GenerationRequest:
    conversation = Conversation(renderer(model), FullHistory(), "Push the box.")
    conversation.ask(observation(model, session))
    return GenerationRequest(
        session,
        tuple(conversation.ids),
        tuple(conversation.images),
        Sampling(**{"max_tokens": 24, "temperature": 1.0} | sampling),
        seed=session,
    )


def ask(engine: Engine, *requests: GenerationRequest) -> list[Generation]:
    async def together() -> list[Generation]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(together())


def changed(policy: PreTrainedModel, scale: float = 0.05) -> PreTrainedModel:
    """Add noise to every trainable parameter in place, as an optimizer step might."""
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                spread = parameter.std(correction=0) or 1.0  # LoRA's second matrix starts at 0
                parameter.add_(scale * spread * torch.randn_like(parameter))
    return policy
