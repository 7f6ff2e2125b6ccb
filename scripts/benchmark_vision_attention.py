"""Compares a vision tower's attention in a call for each image or window with one for each length.

    OMP_NUM_THREADS=1 python scripts/benchmark_vision_attention.py
    OMP_NUM_THREADS=1 python scripts/benchmark_vision_attention.py --repeats 3 --towers 3b

Patches attend within their image, and in most layers of Qwen2.5-VL within a window of it.
transformers' `sdpa` calls the kernel for each of them. Here a function of our own gets all of them,
as flash attention does, and calls the same kernel once for each length that occurs, so images and
windows of one size are a batch. Towers are random; `3b` is that of Qwen2.5-VL-3B with 4 of its 32
layers, of which one attends to whole images. Milliseconds are the processor's, of a forward pass
and of one with its backward pass; the smallest of `--repeats`, measured in turns.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel as Tower,
)

BY_LENGTH = "by_length_like_flash"
"""transformers hands all images at once to any attention whose name contains ``flash``."""

WIDE = dict(hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=2048)
NARROW = dict(hidden_size=64, intermediate_size=128, num_heads=4, out_hidden_size=128)
TOWERS: dict[str, dict[str, Any]] = {
    "tiny": {**NARROW, "depth": 2, "fullatt_block_indexes": [0, 1], "window_size": 1792},
    "tiny with windows": {**NARROW, "depth": 4, "fullatt_block_indexes": [3], "window_size": 112},
    "3b": {**WIDE, "depth": 4, "fullatt_block_indexes": [3], "window_size": 112},
}
SIDES = {
    "tiny": ([84] * 16, [168] * 16, [224] * 16, [84, 112, 140, 168] * 4),
    "tiny with windows": ([84] * 16, [168] * 16, [224] * 16, [84, 112, 140, 168] * 4),
    "3b": ([84] * 4, [168] * 2, [224], [140, 168]),
}
"""Pixels of the pictures of each batch."""


def by_length(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    cu_seq_lens_q: Tensor,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention ``(1, H, N, D)`` within pieces of the sequence, which `cu_seq_lens_q` bounds."""
    starts, lengths = cu_seq_lens_q[:-1], cu_seq_lens_q.diff()
    if (lengths == lengths[0]).all():
        queries, keys, values = (
            tensor[0].unflatten(1, (len(lengths), -1)).transpose(0, 1)
            for tensor in (query, key, value)
        )
        states = F.scaled_dot_product_attention(queries, keys, values, scale=scaling)
        return states.transpose(1, 2).flatten(0, 1)[None], None
    found: list[Tensor] = []
    places: list[Tensor] = []
    for length in lengths.unique().tolist():
        place = starts[lengths == length, None] + torch.arange(length)
        queries, keys, values = (
            tensor[0].index_select(1, place.flatten()).unflatten(1, place.shape).transpose(0, 1)
            for tensor in (query, key, value)
        )
        states = F.scaled_dot_product_attention(queries, keys, values, scale=scaling)
        found.append(states.transpose(1, 2).flatten(0, 1))
        places.append(place.flatten())
    return torch.cat(found).index_select(0, torch.cat(places).argsort())[None], None


AttentionInterface.register(BY_LENGTH, by_length)


class Calls(TorchDispatchMode):
    """Counts the operations whose name contains ``attention``."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count["attention"] += "attention" in func.__name__
        return func(*args, **(kwargs or {}))


def milliseconds(started: float) -> float:
    return 1000 * (time.process_time() - started)


def measure(tower: Tower, patches: Tensor, grids: Tensor) -> tuple[int, float, float, Tensor]:
    """Calls and times of a tower, and the gradient of its first weight."""
    with torch.no_grad(), Calls() as calls:
        tower(patches, grids)
    with torch.no_grad():
        started = time.process_time()
        tower(patches, grids)
        forward = milliseconds(started)
    tower.zero_grad()
    started = time.process_time()
    tower(patches, grids).pooler_output.square().sum().backward()
    weight = next(tower.parameters())
    assert weight.grad is not None
    return calls.count["attention"], forward, milliseconds(started), weight.grad


def compare(name: str, sides: list[int], repeats: int) -> None:
    torch.manual_seed(0)
    tower = Tower(Qwen2_5_VLVisionConfig(**TOWERS[name]))
    grids = torch.tensor([[1, side // 14, side // 14] for side in sides])
    patches = torch.randn(int(grids.prod(-1).sum()), 3 * 2 * 14**2)
    found: dict[str, list[tuple[int, float, float, Tensor]]] = {"sdpa": [], BY_LENGTH: []}
    for _ in range(repeats):
        for how, times in found.items():
            tower.config._attn_implementation = how
            times.append(measure(tower, patches, grids))
    (one, *_), (other, *_) = found.values()
    torch.testing.assert_close(one[3], other[3])
    cells = [name, f"{len(sides)} of {' and '.join(map(str, sorted({*sides})))} px"]
    cells.append(f"{one[0]} → {other[0]}")
    for column in (1, 2):
        before, after = (min(each[column] for each in times) for times in found.values())
        cells.append(f"{before:,.1f} → {after:,.1f}")
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--towers", nargs="+", choices=TOWERS, default=[*TOWERS])
    parser.add_argument("--repeats", type=int, default=7)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    print("| tower | pictures | calls | forward, ms | forward and backward, ms |")
    print("|---|---|--:|--:|--:|")
    for name in settings.towers:
        for sides in SIDES[name]:
            compare(name, sides, settings.repeats)


if __name__ == "__main__":
    main()
