"""Weights that FSDP2 or ZeRO-3 spread over the ranks, gathered one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def is_sharded(module: nn.Module) -> bool:
    """Whether this rank holds only a part of the module's weights."""
    return any(_is_spread(parameter) for parameter in module.parameters())


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor that FSDP2 may have spread; all ranks must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextmanager
def gathered(weight: Tensor) -> Iterator[Tensor]:
    """The whole of a weight, which is freed after the block.

    All ranks must enter the block together.
    """
    if hasattr(weight, "ds_id"):  # set by DeepSpeed on parameters that ZeRO-3 partitions
        from deepspeed.runtime.zero import GatheredParameters  # pyright: ignore

        with GatheredParameters([weight]):
            yield weight.detach()
    else:
        yield full(weight.detach())


def full_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the items of a module's state dict, each gathered when its turn comes.

    All ranks must iterate together.
    """
    for name, weight in module.state_dict(keep_vars=True).items():
        with gathered(weight) as whole:
            yield name, whole


def _is_spread(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor) or hasattr(parameter, "ds_id")
