"""Measures what it costs to hash and to encode the pictures of episodes.

    python scripts/benchmark_images.py
    python scripts/benchmark_images.py --side 448 --pictures 400

The first line asks for the prompts of one episode turn by turn, in which every turn shows all
pictures so far, as an engine without a cache of its own does; the second encodes a batch of more
pictures than the encoder's cache holds, which were all encoded while they were played; the third
encodes them again. Pictures are noise.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

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
    started = time.perf_counter()
    for turn in range(settings.turns):
        encoder.encode(shown[: turn + 1])
    seconds = (time.perf_counter() - started) / settings.turns
    print(f"a prompt of up to {settings.turns} known pictures: {1000 * seconds:.1f} ms on average")

    batch = noise(settings.side, settings.pictures)
    for picture in batch:
        encoder.encode([picture])
    for name in ("the batch after it was played", "the batch again"):
        Counting.encoded, started = 0, time.perf_counter()
        encoder.encode_rows([[picture] for picture in batch])
        seconds = time.perf_counter() - started
        print(f"{name}: {Counting.encoded} of {len(batch)} encoded anew, {seconds:.2f} s")


if __name__ == "__main__":
    main()
