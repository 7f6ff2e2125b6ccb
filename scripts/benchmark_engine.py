"""Measures the reading and sampling speed of TransformersEngine by batch size, with a tiny model.

OMP_NUM_THREADS=1 python scripts/benchmark_engine.py [--batches 1 16 64 128] [--threads 1]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import torch
from PIL import Image
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from vagentrl.engines import TransformersEngine
from vagentrl.engines.base import GenerationRequest, Sampling, Vocabulary
from vagentrl.engines.cached_policy import CachedPolicy
from vagentrl.types import VisionInputs

IMAGE_TOKEN, VOCABULARY, SIDE = 440, 448, 6
PICTURE = Image.new("RGB", (SIDE * 14, SIDE * 14))


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
    """Return a prompt of images (36 tokens and two markers each), each followed by text."""
    picture = (442, *[IMAGE_TOKEN] * SIDE * SIDE, 443)
    turns = [(*picture, *(rng.randrange(2, 440) for _ in range(text))) for _ in range(images)]
    return sum(turns, ())


async def play(engine: TransformersEngine, batch: int, turns: int, reply: int) -> None:
    """Play a batch of episodes; each turn adds an image and 12 tokens to the context."""

    async def episode(seed: int) -> None:
        rng = random.Random(seed)
        context, images = (), ()
        for turn in range(turns):
            context += prompt(rng, 1, 12)
            images += (PICTURE,)
            sampling = Sampling(max_tokens=rng.randrange(reply // 2, reply * 3 // 2 + 1))
            request = GenerationRequest(seed, context, images, sampling, 100 * seed + turn)
            context += (await engine.generate(request)).reply_ids
            await asyncio.to_thread(time.sleep, 0.001)  # stands for the environment's step
        engine.release(seed)

    await asyncio.gather(*map(episode, range(batch)))


def passes(policy: CachedPolicy, batch: int, context: int) -> tuple[float, float, float]:
    """Return the seconds to read all contexts, to read one more turn, and to decode one token."""
    turns = context // 50

    def request(row: int, turns: int) -> GenerationRequest:
        ids = prompt(random.Random(row), turns, 12)
        return GenerationRequest(row, ids, (PICTURE,) * turns, Sampling(), 0)

    def seconds(run, repeats: int = 1) -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - started) / repeats

    rows = range(batch)
    with policy.sampling_mode():
        read = seconds(lambda: policy.prefill([request(row, turns) for row in rows], 0))
        policy.prefill([request(row, turns + 1) for row in rows], 0)  # the cache grows here
        turn = seconds(lambda: policy.prefill([request(row, turns + 2) for row in rows], 0))
        policy.decode([7] * batch)
        return read, turn, seconds(lambda: policy.decode([7] * batch), repeats=20)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the TransformersEngine by batch size.")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 128])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, vocabulary = tiny_vlm(), Vocabulary(frozenset(), frozenset({IMAGE_TOKEN}), 4096, encode)
    engine = TransformersEngine()
    engine.prepare(vocabulary)
    engine.update_weights(model, 0)
    print(f"threads: {arguments.threads}; a turn reads 50 tokens, 36 of them an image")
    print("rows | first prompt tok/s | a turn ms | decode ms/step tok/s | episodes tok/s s busy_s")
    for batch in arguments.batches:
        read, turn, step = passes(CachedPolicy(model, vocabulary, batch), batch, arguments.context)
        sampled, busy, started = engine.sampled_tokens, engine.busy_s, time.perf_counter()
        asyncio.run(play(engine, batch, turns=8, reply=30))
        wall = time.perf_counter() - started
        print(
            f"{batch:4} | {batch * arguments.context / read:18.0f} | {turn * 1e3:9.1f} | "
            f"{step * 1e3:14.1f} {batch / step:5.0f} | "
            f"{(engine.sampled_tokens - sampled) / wall:14.0f} {wall:6.2f} "
            f"{engine.busy_s - busy:6.2f}"
        )


if __name__ == "__main__":
    main()
