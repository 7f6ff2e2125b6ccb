"""Compares how soon tiny vision-language models see, by how their weights start.

    OMP_NUM_THREADS=1 python scripts/study_perception.py

Each model learns to tell the state of lakes (FrozenLake, 5 × 5 cells of 14 pixels) from a picture,
with nothing else in its context. Prints, after every hundred steps of 32 pictures, of which share
of the last 10 steps' pictures the player's place is told right, and of which the whole state. No
picture is seen twice.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vagentrl.cli.warmstart.demonstrator import Demonstration, to_trajectory
from vagentrl.contexts import FullHistory
from vagentrl.environment import seed_of
from vagentrl.formats import Grounding
from vagentrl.models.tiny import TinyModel, save_new_model
from vagentrl.modules.actor import ActorModule
from vagentrl.rollout.collate import collate
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import RolloutBatch
from vagentrl_envs.frozen_lake import FrozenLake

PLAYER = slice(0, 4)
"""Tokens of a reply that tell the player's place: the start, the row, a comma, the column."""

shape = partial(
    TinyModel, hidden_size=96, intermediate_size=256, vocabulary=640, context_length=256, merge=1
)
ARMS = {
    "as transformers starts": shape(),
    "rope_theta 30": shape(rope_theta=30),
    "contrast 0.8": shape(contrast=0.8),
    "contrast 0.8, rope_theta 30": shape(contrast=0.8, rope_theta=30),
}


def demonstration(environment: FrozenLake, seed: int) -> Demonstration:
    """A picture, and the state that it shows."""
    observation = environment.reset(seed_of("train", seed))
    return Demonstration("", (observation,), (environment.state().structured,))


def batches(environment: FrozenLake, renderer: Renderer, size: int) -> Iterator[RolloutBatch]:
    seeds = np.random.default_rng(1)
    while True:
        shown = [
            to_trajectory(
                demonstration(environment, int(seed)), renderer, FullHistory(), context_length=256
            )
            for seed in seeds.integers(2**60, size=size)
        ]
        yield collate(shown, renderer, temperature=1.0).to("cpu")


def right(logprobs: Tensor, batch: RolloutBatch, told: slice) -> float:
    """The share of rows in which each of the reply's tokens in `told` has more than half."""
    rows = zip(logprobs.detach().exp(), batch.action_mask.bool(), strict=True)
    return float(np.mean([bool((row[mask][told] > 0.5).all()) for row, mask in rows]))


def learn(
    model: TinyModel, steps: int, batch_size: int, lr: float
) -> Iterator[tuple[int, float, float]]:
    """Yield steps, and the shares of players and of states that were told right."""
    environment = FrozenLake(
        size=5,
        hole_share=0.16,
        random_start=True,
        min_solution=3,
        observation="image",
        format=Grounding("structured"),
    )
    torch.manual_seed(1)
    told = [demonstration(environment, seed).replies[0] for seed in range(300)]
    with tempfile.TemporaryDirectory() as folder:
        policy = save_new_model(model, told, folder)
        renderer = Renderer.from_pretrained(folder)
    actor = ActorModule(policy, renderer.banned_ids)
    optimizer = torch.optim.AdamW(actor.parameters(), lr, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.05)
    latest: list[tuple[float, float]] = []
    stream = batches(environment, renderer, batch_size)
    for step, batch in zip(range(1, steps + 1), stream, strict=False):
        logprobs = actor(batch)
        latest.append((right(logprobs, batch, PLAYER), right(logprobs, batch, slice(None))))
        optimizer.zero_grad()
        (-logprobs.sum() / batch.action_mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            player, whole = np.mean(latest[-10:], axis=0)
            yield step, float(player), float(whole)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600, help="hundreds")
    parser.add_argument("--batch_size", type=int, default=32, help="pictures in a step")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate (one cycle)")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    counts = range(100, settings.steps + 1, 100)
    print("| player, whole state told right after | " + " | ".join(map(str, counts)) + " |")
    print("|---|" + "---|" * len(counts))
    for name, model in ARMS.items():
        print(f"| {name} ", end="", flush=True)
        for _, player, whole in learn(model, settings.steps, settings.batch_size, settings.lr):
            print(f"| {player:.2f}, {whole:.2f} ", end="", flush=True)
        print("|")


if __name__ == "__main__":
    main()
