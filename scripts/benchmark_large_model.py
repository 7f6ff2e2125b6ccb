"""Tokens a second of a large model with random weights: sampling, and a step of learning.

    python scripts/benchmark_large_model.py MODEL --dtype bfloat16          # on a GPU
    python scripts/benchmark_large_model.py MODEL --layers 2 --hidden 256   # anywhere

`MODEL` is a folder with a ``config.json``, such as tests/data/qwen2_5_vl_3b. `--episodes` episodes
of `--turns` turns each show a picture and reply with `--reply` tokens; the same tokens are then
learned from: forward and backward pass of PPO's policy loss with gradient checkpointing, and AdamW.
One round warms up; the table has the next one's.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from vagentrl.engines import TransformersEngine
from vagentrl.engines.base import Generation, GenerationRequest, Sampling, Vocabulary
from vagentrl.losses import PPOClip, masked_mean
from vagentrl.modules.actor import ActorModule
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch, VisionInputs

WORDS_PER_TURN = 40
NO_IMAGE = Image.new("RGB", (1, 1))  # stands where a picture is asked for


def random_model(arguments: argparse.Namespace) -> PreTrainedModel:
    config: Any = AutoConfig.from_pretrained(arguments.model)
    text = config.get_text_config()
    if arguments.layers:
        text.num_hidden_layers = arguments.layers
        text.layer_types = text.layer_types[: arguments.layers]
        config.vision_config.depth = arguments.layers
    if arguments.hidden:
        text.num_attention_heads, text.num_key_value_heads = arguments.hidden // 128, 1
        text.intermediate_size = 4 * arguments.hidden
        text.hidden_size = config.vision_config.out_hidden_size = arguments.hidden
    with torch.device(arguments.device):
        model = AutoModelForImageTextToText.from_config(
            config, dtype=getattr(torch, arguments.dtype)
        ).eval()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
    return model


class Pictures:
    """Stands for a renderer: every picture is the same square of noise.

    Args:
        config: Of the model.
        tokens: Tokens that a picture takes.
    """

    def __init__(self, config: Any, tokens: int, device: str) -> None:
        vision = config.vision_config
        side = int(tokens**0.5) * vision.spatial_merge_size
        width = vision.in_chans * vision.temporal_patch_size * vision.patch_size**2
        self.grid = torch.tensor([[1, side, side]], device=device)
        self.patches = torch.randn(side**2, width, device=device)
        self.tokens = side**2 // vision.spatial_merge_size**2

    def encode(self, images: Sequence[Image.Image]) -> VisionInputs:
        count = len(images)
        return VisionInputs(
            self.patches.repeat(count, 1), self.grid.repeat(count, 1), (tuple(range(count)),)
        )


async def play(
    engine: TransformersEngine, shown: list[int], arguments: argparse.Namespace
) -> list[list[int]]:
    """The tokens of every episode."""

    async def episode(number: int) -> list[int]:
        ids: list[int] = []
        for turn in range(arguments.turns):
            ids += shown
            pictures = (NO_IMAGE,) * (turn + 1)
            sampling = Sampling(max_tokens=arguments.reply)
            seed = number * arguments.turns + turn
            reply: Generation = await engine.generate(
                GenerationRequest(number, tuple(ids), pictures, sampling, seed)
            )
            ids += reply.reply_ids
        engine.release(number)
        return ids

    return await asyncio.gather(*map(episode, range(arguments.episodes)))


def batch_of(rows: Tensor, replies: Tensor, vision: VisionInputs) -> TrainBatch:
    zeros = torch.zeros(rows.shape, device=rows.device)
    count = len(rows)
    rollout = RolloutBatch(
        input_ids=rows,
        attention_mask=torch.ones_like(replies),
        action_mask=replies,
        turn_ids=torch.where(replies, 0, -1),
        state_ids=torch.where(replies, 0, -1),
        rewards=zeros,
        rollout_logprobs=zeros,
        policy_version=torch.where(replies, 0, -1),
        trajectory_ids=torch.arange(count, device=rows.device),
        group_ids=torch.arange(count, device=rows.device),
        bootstrap_index=torch.full((count,), -1, device=rows.device),
        vision=vision,
    )
    return TrainBatch(rollout, Scores(zeros), Credit(torch.randn_like(zeros)), zeros)


def learn(
    actor: ActorModule, optimizer: torch.optim.Optimizer, batch: TrainBatch, micro: int
) -> None:
    loss = PPOClip()
    count = len(batch.rollout)
    for rows in torch.arange(count, device=batch.rollout.input_ids.device).split(micro):
        part = batch.select(rows)
        per_token = loss(actor(part.rollout), part)
        (masked_mean(per_token, part.rollout.action_mask) / (count / len(rows))).backward()
    optimizer.step()
    optimizer.zero_grad()


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=gpu, choices=["cuda", "cpu"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--hidden", type=int, help="another width (a multiple of 128)")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--reply", type=int, default=200)
    parser.add_argument("--picture", type=int, default=64, help="tokens of a picture, a square")
    parser.add_argument("--micro_batch_size", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    device, turns, count = arguments.device, arguments.turns, arguments.episodes
    torch.manual_seed(0)
    model = random_model(arguments)
    config: Any = model.config
    pictures = Pictures(config, arguments.picture, device)
    image = [config.vision_start_token_id, *[config.image_token_id] * pictures.tokens]
    shown = [*image, config.vision_end_token_id, *range(100, 100 + WORDS_PER_TURN)]
    banned = frozenset({config.image_token_id, config.video_token_id})
    engine = TransformersEngine()
    context = turns * (len(shown) + arguments.reply) + 1
    engine.prepare(Vocabulary(frozenset(), banned, context, pictures.encode))
    actor = ActorModule(model, banned).to(device)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-6)
    replies = ([False] * len(shown) + [True] * arguments.reply) * turns
    mask = torch.tensor([replies] * count, device=device)
    rows = tuple(tuple(range(row * turns, (row + 1) * turns)) for row in range(count))
    vision = replace(pictures.encode([NO_IMAGE] * count * turns), rows=rows)
    started = sampled = learned = 0.0
    for _ in range(2):  # the first one warms up
        engine.update_weights(model, 0)
        started = clock(device)
        episodes = torch.tensor(asyncio.run(play(engine, shown, arguments)), device=device)
        sampled = clock(device)
        batch = batch_of(episodes, mask, vision)
        learn(actor, optimizer, batch, arguments.micro_batch_size)
        learned = clock(device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {arguments.dtype}, {device}")
    for name, seconds, tokens in (
        ("sampling", sampled - started, int(mask.sum())),
        ("learning", learned - sampled, mask.numel()),
    ):
        print(f"{name:<10}{seconds:>8.2f} s {tokens / seconds:>10,.0f} tokens/s")
    if device == "cuda":
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")


if __name__ == "__main__":
    main()
