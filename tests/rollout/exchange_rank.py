"""One of two ranks that exchange pictures, for test_exchange; stores what it has seen."""

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from PIL import Image

from tests import toy
from vagentrl import ranks
from vagentrl.errors import VagentError
from vagentrl.losses import Aggregation
from vagentrl.pictures import RemotePicture
from vagentrl.rollout.collate import collate
from vagentrl.rollout.exchange import bring, bring_rows, with_pixels
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.types import Credit, Pictures, RolloutBatch, Scores, Trajectory, VisionInputs

PLAYED = ((3, 3, 0), (1, 3, 1), (0, 2, 2), (2, 1, 3), (1, 4, 1))
"""The seed, number of replies and shade of the pictures of each episode.

They are dealt to the ranks. What the last one (rank 0's) shows, the second (rank 1's) has shown.
"""


def played() -> list[Trajectory]:
    """The episodes, in the order in which they are dealt."""
    episodes = []
    for number, (seed, count, shade) in enumerate(PLAYED):
        with patch.object(toy, "picture", partial(picture, shade)):
            replies = [toy.WAIT] * (count - 1) + [toy.GO]
            episodes.append(toy.play(replies, seed=seed, images=True, group_id=number))
    return episodes


def picture(shade: int, left: int) -> Image.Image:
    return Image.new("RGB", (28 * (left + 1), 28), (50 * shade, 0, 0))


def batch(trajectories: list[Trajectory]) -> RolloutBatch:
    return collate(trajectories, toy.renderer(images=True), temperature=1.0)


def learned(rollout: RolloutBatch, count: int, rank: int) -> list[Any]:
    """Of each micro-batch: its tokens, its patches, and how many pictures here have pixels."""
    zeros = torch.zeros_like(rollout.rewards)
    loader = MinibatchLoader(
        rollout, Scores(zeros), Credit(zeros), Aggregation(),
        minibatch_size=3, micro_batch_size=1, passes=1, seed=5, ranks=count, rank=rank,
    )  # fmt: skip
    found = []
    for part in loader:
        assert isinstance(part.rollout.vision, Pictures)
        patches = part.to("cpu").rollout.patches
        assert isinstance(patches, VisionInputs)
        held = places_with_pixels(part.rollout.vision.images)
        found.append(
            (part.rollout.input_ids, bool(part.weights.any()), patches.model_inputs(), held)
        )
    return found


def pixels(trajectories: list[Trajectory]) -> list[list[bytes | None]]:
    """Of each picture of each episode, None where they are elsewhere."""
    return [
        [
            None if isinstance(image, RemotePicture) else image.tobytes()
            for turn in each.turns
            for image in turn.observation.images
        ]
        for each in trajectories
    ]


def places_with_pixels(images: tuple[Image.Image, ...]) -> list[int]:
    return [n for n, image in enumerate(images) if not isinstance(image, RemotePicture)]


def error_of(act: Any) -> str:
    try:
        act()
    except (OSError, VagentError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main(rank: str, port: str) -> None:
    number = int(rank)
    os.environ.update(RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.distributed.init_process_group("gloo")
    everyones = ranks.gather(ranks.shard(played()))
    rollout = batch(everyones)
    assert isinstance(rollout.vision, Pictures)
    images = rollout.vision.images

    def lose() -> None:  # rank 1's own pictures are gone, and rank 0 asks for one of them
        lost = [
            image if isinstance(image, RemotePicture) else RemotePicture(image.size, b"", 0)
            for image in images
        ]
        bring(lost if number else images, [] if number else range(len(images)))

    def pack() -> list[bytes]:
        if number:
            raise OSError("rank 1 has no room")
        return [b"to 0", b"to 1"]

    line = ranks.Line()
    with line.taken():
        over_line = ranks.gather([number])
    line.close()
    line.close()
    with patch.object(torch.distributed, "get_backend", lambda group: "nccl"):  # as on GPUs
        beside = [ranks.gather([number]) for _ in range(2)], len(ranks._for_cpu)
    seen = {
        "beside NCCL": beside,
        "batch": replace(rollout, vision=None),
        "rows": rollout.vision.rows,
        "sizes": [image.size for image in images],
        "own": places_with_pixels(images),
        "row 1": places_with_pixels(bring_rows(rollout, [number]).vision.images),  # pyright: ignore
        "learned": learned(rollout, 2, number),
        "with pixels": pixels(with_pixels(everyones, here=number == 0)),
        "over a line": over_line,
        "parcels": [*map(bytes, ranks.exchange(lambda: [b"", b"from %d" % number]))],
        "lost": error_of(lose),
        "no room": error_of(lambda: ranks.exchange(pack)),
        "afterwards": ranks.gather([number]),
    }
    torch.save(seen, Path(f"rank_{rank}.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:])
