"""Gradients of 0 for the weights that a loss does not depend on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

AccumulateGrad = torch._C._functions.AccumulateGrad  # pyright: ignore
"""The node of a graph that stores the gradient of a leaf."""


def touch(loss: Tensor, weights: Iterable[Tensor]) -> Tensor:
    """The same loss, with a gradient for each of the weights: 0 where it does not depend on them.

    Args:
        loss: A number with a gradient.
        weights: Leaves of the graph that require gradients; plain tensors, not sharded ones.
    """
    used = {id(weight) for weight in _leaves(loss)}
    return with_zero_gradients(loss, [weight for weight in weights if id(weight) not in used])


def with_zero_gradients(tensor: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The same tensor, whose backward pass gives each of the weights a gradient of 0."""
    return _Touch.apply(tensor, *weights) if weights else tensor  # pyright: ignore


@contextmanager
def vision_in_every_pass(backbones: Iterable[nn.Module]) -> Iterator[None]:
    """Let vision towers that learn run in every pass inside the block, if only on a black picture.

    Its features count 0, so the tower's gradients are 0. Unlike those of `touch` they come in the
    order of a pass with images: after those of the decoder layers. DeepSpeed reduces gradients as
    they come; in another order on another rank, they would be added to those of other weights.

    Args:
        backbones: Hugging Face models without their heads. Those without a vision tower, and those
            whose tower is frozen, stay as they are.
    """
    with ExitStack() as hooks:
        for backbone in backbones:
            tower = getattr(backbone, "visual", None)
            if tower is not None and any(p.requires_grad for p in tower.parameters()):
                look = partial(_show_black_picture, tower)
                hooks.enter_context(backbone.register_forward_pre_hook(look, with_kwargs=True))
        yield


def _show_black_picture(tower: nn.Module, backbone: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Before a pass without images, have the language model add a black one to its inputs."""
    if kwargs.get("pixel_values") is not None:
        return

    def add(language_model: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        once.remove()
        embeds = kwargs["inputs_embeds"]
        nothing = _features_of_black(tower, embeds) * 0  # 0 times a sum could be 0 times infinity
        return args, kwargs | {"inputs_embeds": embeds + nothing.sum()}

    # Here, after the embeddings and before the layers, the features of real images are added.
    once = backbone.language_model.register_forward_pre_hook(add, with_kwargs=True, prepend=True)


def _features_of_black(tower: Any, like: Tensor) -> Tensor:
    """All features of the smallest picture, in one row; it has the type and device of a tensor."""
    patch, side = tower.patch_embed.proj, tower.spatial_merge_size
    black = like.new_zeros(side**2, patch.in_channels * math.prod(patch.kernel_size))
    output = tower(black, grid_thw=torch.tensor([[1, side, side]], device=like.device))
    features = [output.pooler_output, *(output.get("deepstack_features") or ())]
    return torch.cat([feature.flatten() for feature in features])


def _leaves(loss: Tensor) -> Iterable[Tensor]:
    """The tensors for which the backward pass of a loss accumulates gradients."""
    seen: set[Node] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, AccumulateGrad):
            yield node.variable  # pyright: ignore
        waiting += [following for following, _ in node.next_functions]


class _Touch(torch.autograd.Function):
    """Returns its first argument; the gradients of the others are one 0, expanded to their shape.

    So the backward pass allocates nothing for them until the gradients are stored.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *weights: Tensor) -> Tensor:
        ctx.like = [(weight.shape, weight.dtype, weight.device) for weight in weights]
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        zeros = (
            torch.zeros((), dtype=kind, device=at).expand(shape) for shape, kind, at in ctx.like
        )
        return gradient, *zeros
