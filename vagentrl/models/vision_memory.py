"""A frozen vision tower that encodes each image once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

LIMIT = 256 * 2**20
"""Bytes of features that a tower keeps; the least recently used images are dropped first."""


_READ = ("pooler_output", "deepstack_features")


def remember_images(tower: nn.Module, limit: int = LIMIT) -> None:
    """Let a frozen vision tower of the Qwen-VL family look up images that it has encoded before.

    Environments show the same images often: in every later turn, and in every pass over a batch.
    Each image is encoded alone, so that the other images of a batch cannot change its features, not
    even in the last bit. (Images do not attend to each other.)

    Args:
        tower: The tower. Its weights must not be trained. After other weights are loaded, images
            are encoded anew.
        limit: Most bytes of features to keep.
    """
    # Set on the instance, so that the names in the state dict stay as they are.
    tower.forward = _Memory(tower, limit).forward  # pyright: ignore


class _Memory:
    def __init__(self, tower: nn.Module, limit: int) -> None:
        self._encode = tower.forward
        self._weight = next(tower.parameters())
        self._limit = limit
        self._size = 0
        self._direction: Tensor | None = None
        self._known: OrderedDict[tuple, Any] = OrderedDict()  # least recently used first

    @torch.no_grad()
    def forward(self, pixel_values: Tensor, grid_thw: Tensor, **settings: Any) -> Any:
        images = pixel_values.split(grid_thw.prod(-1).tolist())
        outputs = [
            self._look_up(patches, grid, settings)
            for patches, grid in zip(images, grid_thw.split(1), strict=True)
        ]
        joined: dict[str, Any] = {
            "pooler_output": torch.cat([output.pooler_output for output in outputs])
        }
        if "deepstack_features" in outputs[0]:
            layers = zip(*(output.deepstack_features for output in outputs), strict=True)
            joined["deepstack_features"] = [torch.cat(layer) for layer in layers]
        return type(outputs[0])(**joined)

    def _probe(self, patches: Tensor) -> Tensor:
        if self._direction is None:
            generator = torch.Generator().manual_seed(0)
            self._direction = torch.randn(
                patches.shape[1], generator=generator, dtype=torch.float64
            ).to(patches.device)
        return self._direction

    def _look_up(self, patches: Tensor, grid: Tensor, settings: dict[str, Any]) -> Any:
        # Patches with equal projections on a random direction in float64 are taken for equal;
        # hashing all their bytes takes ten times as long.
        marks = (patches.double() @ self._probe(patches)).cpu().numpy().tobytes()
        # other weights or another precision give other features
        precision = torch.is_autocast_enabled(patches.device.type)
        key = (marks, tuple(grid.flatten().tolist()), self._weight._version, precision)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        output = self._encode(patches, grid, **settings)
        # the last hidden state is large, and the language model does not need it
        output = type(output)(**{name: output[name] for name in _READ if name in output})
        self._known[key] = output
        self._size += _bytes(output)
        while self._size > self._limit:
            self._size -= _bytes(self._known.popitem(last=False)[1])
        return output


def _bytes(output: Any) -> int:
    tensors = (output.pooler_output, *(output.get("deepstack_features") or ()))
    return sum(tensor.nbytes for tensor in tensors)
