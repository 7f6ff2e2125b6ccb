"""Gradients of 0 for the weights that a loss does not depend on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
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
