"""How fast the TransformersEngine reads and samples, by batch size, on the tiny model's shape.

    OMP_NUM_THREADS=1 python scripts/benchmark_engine.py [--batches 1 16 64 128] [--threads 1]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from vagentrl.engine import GenerationRequest, Sampling, Vocabulary
from vagentrl.engines import TransformersEngine
from vagentrl.types import VisionInputs

IMAGE_TOKEN, VOCABULARY, SIDE = 440, 448, 6


def tiny_vlm() -> Qwen2_5_VLForConditionalGeneration:
    text = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 352,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 4096, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]},
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 14,
        "spatial_merge_size": 1, "temporal_patch_size": 1, "window_size": 14 * 64,
        "fullatt_block_indexes": [0, 1], "out_hidden_size": 128,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE_TOKEN, video_token_id=441,
        vision_start_token_id=442, vision_end_token_id=443, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config)


def encode(images) -> VisionInputs:
    patches = torch.randn(len(images) * SIDE * SIDE, 3 * 14 * 14)
    grids = torch.tensor([[1, SIDE, SIDE]] * len(images))
    return VisionInputs(patches, grids, (tuple(range(len(images))),))


def prompt(rng: random.Random, images: int, text: int) -> tuple[int, ...]:
    """Images of 36 tokens between their markers, each followed by text."""
    picture = (442, *[IMAGE_TOKEN] * SIDE * SIDE, 443)
    turns = [(*picture, *(rng.randrange(2, 440) for _ in range(text))) for _ in range(images)]
    return sum(turns, ())


async def play(engine: TransformersEngine, batch: int, turns: int, reply: int) -> None:
    """Episodes side by side; each turn adds an image and 12 tokens to the context."""

    async def episode(seed: int) -> None:
        rng = random.Random(seed)
        context, images = (), ()
        for turn in range(turns):
            context += prompt(rng, 1, 12)
            images += (object(),)
            sampling = Sampling(max_tokens=rng.randrange(reply // 2, reply * 3 // 2 + 1))
            request = GenerationRequest(seed, context, images, sampling, 100 * seed + turn)
            context += (await engine.generate(request)).reply_ids
            await asyncio.to_thread(time.sleep, 0.001)  # the environment
        engine.release(seed)

    await asyncio.gather(*map(episode, range(batch)))


def steps(engine: TransformersEngine, batch: int, context: int) -> tuple[float, float]:
    """Seconds to read `batch` contexts at once, and seconds per decoding step after that."""
    rng = random.Random(0)
    turns = context // 50
    requests = [
        GenerationRequest(row, prompt(rng, turns, 12), (object(),) * turns, Sampling(), 0)
        for row in range(batch)
    ]
    policy = engine._policy
    with policy.sampling_mode():
        started = time.perf_counter()
        policy.prefill(requests, 0)
        read = time.perf_counter() - started
        policy.decode([7] * batch)
        started = time.perf_counter()
        for _ in range(20):
            policy.decode([7] * batch)
        return read, (time.perf_counter() - started) / 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 128])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    engine = TransformersEngine()
    engine.prepare(Vocabulary(frozenset(), frozenset({IMAGE_TOKEN}), 4096, encode))
    model = tiny_vlm()
    print(f"{arguments.threads} threads; context {arguments.context}; episodes of 8 turns x 30 tokens")
    print("rows  prefill tok/s  decode ms/step  decode tok/s | episodes: sampled tok/s  s  busy s")
    for batch in arguments.batches:
        engine.update_weights(model, 0)
        read, step = steps(engine, batch, arguments.context)
        engine.update_weights(model, 0)
        sampled, busy, started = engine.sampled_tokens, engine.busy_s, time.perf_counter()
        asyncio.run(play(engine, batch, turns=8, reply=30))
        wall = time.perf_counter() - started
        print(
            f"{batch:4}  {batch * arguments.context / read:13.0f}  {step * 1e3:14.1f}  "
            f"{batch / step:12.0f} | {(engine.sampled_tokens - sampled) / wall:23.0f}  "
            f"{wall:.2f}  {engine.busy_s - busy:.2f}"
        )


if __name__ == "__main__":
    main()
