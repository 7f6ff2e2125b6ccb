"""Tiny policies with random weights, and reference replies computed without a cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from vagentrl.engines.base import GenerationRequest, Sampling, Vocabulary
from vagentrl.types import VisionInputs

STOP, IMAGE, VIDEO, START, END, BANNED = 1, 90, 91, 92, 93, 94
VOCABULARY_SIZE, CONTEXT, PATCH = 96, 400, 14

TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": STOP,
    "pad_token_id": None,
}
VISION: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": PATCH, "in_channels": 3}
TOKENS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
MROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}


def qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**TEXT))


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**TEXT))


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**TEXT))


def qwen2_vl() -> PreTrainedModel:
    vision = {**VISION, "embed_dim": 32, "hidden_size": 64, "spatial_merge_size": 2}
    text = {**TEXT, "rope_parameters": MROPE}
    config = Qwen2VLConfig(text_config=text, vision_config=vision, **TOKENS)
    return Qwen2VLForConditionalGeneration(config)


def qwen2_5_vl(merge: int = 2) -> PreTrainedModel:
    vision = {
        **VISION,
        "hidden_size": 32,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "spatial_merge_size": merge,
        "window_size": 4 * PATCH,
        "fullatt_block_indexes": [1],
    }
    text = {**TEXT, "rope_parameters": MROPE}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **TOKENS)
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen2_5_vl_unmerged() -> PreTrainedModel:
    return qwen2_5_vl(merge=1)


def qwen3_vl() -> PreTrainedModel:
    vision = {
        **VISION,
        "hidden_size": 32,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "spatial_merge_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    text = {**TEXT, "rope_parameters": {**MROPE, "mrope_interleaved": True}}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, **TOKENS)
    return Qwen3VLForConditionalGeneration(config)


TEXT_POLICIES = [qwen2, qwen3, llama]
VISION_POLICIES = [qwen2_vl, qwen2_5_vl, qwen2_5_vl_unmerged, qwen3_vl]


def patches(images: Sequence[Image.Image]) -> VisionInputs:
    """Convert images to the vision towers' patches; the order within an image is arbitrary."""
    rows, grids = [], []
    for image in images:
        width, height = image.width // PATCH, image.height // PATCH
        pixels = np.asarray(image, dtype=np.float32) / 255
        cells = pixels.reshape(height, PATCH, width, PATCH, 3).transpose(0, 2, 4, 1, 3)
        twice = np.repeat(cells[:, :, :, None], 2, axis=3)  # a still image fills both frames
        rows.append(twice.reshape(height * width, -1))
        grids.append([1, height, width])
    values = torch.from_numpy(np.concatenate(rows))
    return VisionInputs(values, torch.tensor(grids), (tuple(range(len(images))),))


VOCABULARY = Vocabulary(
    stop_ids=frozenset({STOP}),
    banned_ids=frozenset({IMAGE, VIDEO, START, END, BANNED}),
    context_length=CONTEXT,
    encode_images=patches,
)


def picture(rng: random.Random) -> Image.Image:
    shape = (rng.choice([2, 4, 6]) * PATCH, rng.choice([2, 4]) * PATCH, 3)
    pixels = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels)


@dataclass
class Conversation:
    """A context to which a test adds random text and, for a vision policy, images."""

    policy: PreTrainedModel
    seed: int
    ids: tuple[int, ...] = ()
    images: tuple[Image.Image, ...] = ()
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def say(self, tokens: int) -> Conversation:
        self.ids += tuple(self.rng.randrange(2, IMAGE) for _ in range(tokens))
        return self

    def show(self, image: Image.Image | None = None) -> Conversation:
        vision = self.policy.config.vision_config
        image = image or picture(self.rng)
        tokens = image.width * image.height // (PATCH * vision.spatial_merge_size) ** 2
        self.ids += (START, *[IMAGE] * tokens, END)
        self.images += (image,)
        return self

    def request(self, session: int | None = None, **sampling: Any) -> GenerationRequest:
        session = self.seed if session is None else session
        settings = Sampling(**{"temperature": 0.0, "max_tokens": 8, **sampling})
        return GenerationRequest(session, self.ids, self.images, settings, self.seed)


def whole_forward(
    policy: PreTrainedModel, ids: Sequence[int], images: Sequence[Image.Image]
) -> Tensor:
    """Return `(T, V)` logits of one pass over the whole context; the model computes positions."""
    row = torch.tensor([list(ids)])
    inputs: dict[str, Tensor] = {"input_ids": row, "attention_mask": torch.ones_like(row)}
    if images:
        inputs |= patches(images).model_inputs()
        inputs["mm_token_type_ids"] = (row == IMAGE).int()
    with torch.no_grad():
        output: Any = policy.eval()(**inputs)
    return output.logits[0].float()


def slow_greedy(
    policy: PreTrainedModel, request: GenerationRequest
) -> tuple[list[int], list[float]]:
    """Return the greedy reply and its log-probs, reading the whole context for every token."""
    ids, reply, logprobs = list(request.prompt_ids), [], []
    while len(reply) < request.sampling.max_tokens and STOP not in reply:
        logits = whole_forward(policy, ids, request.images)[-1]
        logits[list(VOCABULARY.banned_ids)] = -torch.inf
        token = int(logits.argmax())
        ids.append(token)
        reply.append(token)
        logprobs.append(float(logits.log_softmax(-1)[token]))
    return reply, logprobs
