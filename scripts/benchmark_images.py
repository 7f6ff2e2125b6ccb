"""Measures what it costs to hash and to encode the pictures of episodes.

    python scripts/benchmark_images.py
    python scripts/benchmark_images.py --side 448 --pictures 400

The first two lines are of the prompts of one episode, in which every turn shows all pictures so
far: telling the pictures apart, and joining their patches too, as an engine without a cache of its
own needs them. The others encode a batch of more pictures than the encoder's cache holds, which
were all encoded while they were played, and encode it again. Pictures are noise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from vagentrl.pictures import digest
from vagentrl.rollout.images import ImageEncoder


class Counting(Qwen2VLImageProcessorPil):
    """Counts the pictures that it cuts into patches."""

    encoded = 0

    def preprocess(self, images: Any, **kwargs: Any) -> Any:
        type(self).encoded += len(images)
        return super().preprocess(images, **kwargs)


def noise(side: int, count: int) -> list[Image.Image]:
    generator = np.random.default_rng(0)
    return [
        Image.fromarray(generator.integers(256, size=(side, side, 3), dtype=np.uint8))
        for _ in range(count)
    ]


def tell_apart(images: Sequence[Image.Image]) -> list[bytes]:
    return [digest(image) for image in images]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=224, help="pixels")
    parser.add_argument("--turns", type=int, default=30, help="of the episode")
    parser.add_argument("--pictures", type=int, default=512, help="of the batch")
    parser.add_argument("--cache_mb", type=float, default=256)
    settings = parser.parse_args()
    encoder = ImageEncoder(Counting(), settings.cache_mb)

    shown = noise(settings.side, settings.turns)
    for picture in shown:
        encoder.encode([picture])  # so that the patches are known
    for name, work in (("told apart", tell_apart), ("encoded", encoder.encode)):
        started = time.perf_counter()
        for turn in range(settings.turns):
            work(shown[: turn + 1])
        milliseconds = 1000 * (time.perf_counter() - started) / settings.turns
        print(f"up to {settings.turns} known pictures, {name}: {milliseconds:.2f} ms a turn")

    batch = noise(settings.side, settings.pictures)
    for picture in batch:
        encoder.encode([picture])
    for name in ("the batch after it was played", "the batch again"):
        Counting.encoded, started = 0, time.perf_counter()
        encoder.encode(batch)
        seconds = time.perf_counter() - started
        print(f"{name}: {Counting.encoded} of {len(batch)} encoded anew, {seconds:.2f} s")


if __name__ == "__main__":
    main()
