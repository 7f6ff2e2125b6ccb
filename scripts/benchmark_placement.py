"""Counts the bytes of pictures and patches that each rank of a run holds, and times the exchange.

    python scripts/benchmark_placement.py
    python scripts/benchmark_placement.py --ranks 4 --episodes 128 --turns 20 --side 336

Some processes on this machine each play a share of the episodes, whose pictures are noise, and go
through the batch as a run does: once to score it, once to learn it. No model reads anything. The
first line says what each rank would hold with all pictures and with patches of the whole batch.
Pillow stores a pixel in 4 bytes.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from torch import distributed
from torch.multiprocessing.spawn import spawn
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from vagentrl import ranks
from vagentrl.losses import Aggregation
from vagentrl.pictures import RemotePicture
from vagentrl.rollout.collate import collate
from vagentrl.rollout.exchange import bring_rows
from vagentrl.rollout.images import ImageEncoder
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.types import (
    Credit,
    Observation,
    Pictures,
    Prompt,
    Reply,
    RolloutBatch,
    Scores,
    Trajectory,
    Turn,
    VisionInputs,
)

MIB = 2**20


def play(number: int, turns: int, side: int) -> Trajectory:
    """An episode that shows a new picture in every turn."""
    pixels = np.random.default_rng(number).integers(
        256, size=(turns, side, side, 3), dtype=np.uint8
    )
    shown = [Image.fromarray(each) for each in pixels]
    played = tuple(
        Turn(
            Observation("<image>", (image,)),
            Prompt((1,) * 64, (image,), whole=turn == 0),
            (2,) * 32,
            (-1.0,) * 32,
            Reply(""),
            0.0,
            "stop",
        )
        for turn, image in enumerate(shown)
    )
    return Trajectory("noise", number, number, played, "terminated")


def held(rollout: RolloutBatch) -> int:
    """Bytes of the pictures whose pixels this rank has."""
    assert isinstance(rollout.vision, Pictures)
    here = [image for image in rollout.vision.images if not isinstance(image, RemotePicture)]
    return sum(4 * image.width * image.height for image in here)


def patch_bytes(rollout: RolloutBatch) -> int:
    """Bytes of the patches that a model gets of these rows."""
    patches = rollout.to("cpu").patches
    assert isinstance(patches, VisionInputs)
    return patches.pixel_values.nbytes


def scored(rollout: RolloutBatch, size: int) -> Iterator[tuple[int, int]]:
    """As `AgentModule` scores: bytes of pictures and of patches in each pass of this rank."""
    mine = ranks.shard(torch.arange(len(rollout)).split(size))
    rollout = bring_rows(rollout, torch.cat([*mine]).tolist())
    for rows in mine:
        yield held(rollout), patch_bytes(rollout.select(rows))


def learned(rollout: RolloutBatch, settings: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Bytes of pictures and of patches in each micro-batch of this rank."""
    zeros = torch.zeros_like(rollout.rewards)
    loader = MinibatchLoader(
        rollout,
        Scores(zeros),
        Credit(zeros),
        Aggregation(),
        minibatch_size=settings.minibatch_size,
        micro_batch_size=settings.micro_batch_size,
        passes=1,
        seed=0,
        ranks=ranks.world_size(),
        rank=ranks.rank(),
    )
    for part in loader:
        yield held(part.rollout), patch_bytes(part.rollout)


def measure(rank: int, port: int, settings: argparse.Namespace) -> None:
    """What one rank does; rank 0 prints what all have counted."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=settings.ranks)
    mine = [play(n, settings.turns, settings.side) for n in ranks.shard(range(settings.episodes))]
    encoder = ImageEncoder(Qwen2VLImageProcessorPil())
    one = encoder.encode(mine[0].turns[0].prompt.images).pixel_values.nbytes
    started = time.perf_counter()
    everyones = ranks.gather(mine)
    told = time.perf_counter() - started
    rollout = collate(everyones, encoder, temperature=1.0)  # pyright: ignore[reportArgumentType]
    started = time.perf_counter()
    bring_rows(rollout, ranks.shard(range(1, len(rollout))))  # rows that others have played
    brought = time.perf_counter() - started
    rows = [("as played", held(rollout), 0)]
    for name, passes in (
        ("while scoring", scored(rollout, settings.score_batch_size)),
        ("while learning", learned(rollout, settings)),
    ):
        pictures, patches = (max(each) for each in zip(*passes, strict=True))
        rows.append((name, pictures, patches))
    found = ranks.gather([(rows, told, brought)])
    if rank == 0:
        report(settings, one, found)
    ranks.wait_for_all()
    distributed.destroy_process_group()


def report(
    settings: argparse.Namespace,
    one: int,
    found: list[tuple[list[tuple[str, int, int]], float, float]],
) -> None:
    count = settings.episodes * settings.turns
    pixels = 4 * settings.side**2
    print(
        f"{settings.ranks} ranks, {settings.episodes} episodes of {settings.turns} pictures of "
        f"{settings.side} x {settings.side}: all pictures {count * pixels / MIB:,.0f} MiB, "
        f"patches of all {count * one / MIB:,.0f} MiB"
    )
    print(f"{'most on a rank, MiB':<24}{'pictures':>10}{'patches of a pass':>20}")
    for number, (name, _, _) in enumerate(found[0][0]):
        pictures = max(rows[number][1] for rows, _, _ in found) / MIB
        patches = max(rows[number][2] for rows, _, _ in found) / MIB
        print(f"{name:<24}{pictures:>10,.0f}{patches:>20,.0f}")
    told, brought = (max(each[column] for each in found) for column in (1, 2))
    print(
        f"{told:.2f} s to exchange all but pixels, {brought:.2f} s to bring each rank as many "
        "pictures as it has played"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--side", type=int, default=224, help="pixels")
    parser.add_argument("--score_batch_size", type=int, default=4)
    parser.add_argument("--minibatch_size", type=int, default=16)
    parser.add_argument("--micro_batch_size", type=int, default=2)
    settings = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(measure, (port, settings), settings.ranks)


if __name__ == "__main__":
    main()
