"""The language-model head in a type of its own."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

HeadDtype = Literal["float32", "bfloat16"]


def set_head_dtype(policy: PreTrainedModel, dtype: HeadDtype) -> None:
    """Compute a policy's language-model head in a type of its own, also under autocast.

    In bfloat16, logits of 8 to 16 are rounded by up to 0.03, and trainer and sampler round states
    that differ a little to logits that differ by that. A float32 head keeps the difference small
    (MiniMax-M1, arXiv 2506.13585). The weights keep their type, as an embedding that is tied to the
    head must.

    The choice holds wherever the policy is called. It is written into the policy's configuration
    as ``head_dtype``, which vLLM reads.
    """
    head: nn.Module = policy.get_output_embeddings()  # pyright: ignore
    # A method of the instance: names in the state dict stay, and a copy reads its own weights.
    head.forward = MethodType(partial(_linear, getattr(torch, dtype)), head)
    policy.config.head_dtype = dtype


def head_dtype_of(config: PreTrainedConfig) -> HeadDtype | None:
    """The type that a configuration wants for the head; None: that of the weights."""
    return getattr(config, "head_dtype", None)


def _linear(dtype: torch.dtype, head: nn.Linear, input: Tensor) -> Tensor:
    with torch.autocast(input.device.type, enabled=False):
        bias = None if head.bias is None else head.bias.to(dtype)
        return F.linear(input.to(dtype), head.weight.to(dtype), bias)
