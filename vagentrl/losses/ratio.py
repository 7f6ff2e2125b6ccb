"""Probability ratios that stay finite, and means over the action mask."""

from jaxtyping import Bool, Float
from torch import Tensor


def probability_ratio(
    logprobs: Float[Tensor, "*shape"], old_logprobs: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """``exp(logprobs - old_logprobs)``, clamped to between e^-20 and e^20.

    Tokens off the action mask are later multiplied by a weight of 0. If their ratio overflowed,
    that would give NaN (0 times infinity) in the loss and in the gradient.
    """
    return (logprobs - old_logprobs).clamp(-20.0, 20.0).exp()


def masked_mean(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean of the values where ``mask`` is True; 0 where it is True nowhere."""
    return values[mask].sum() / mask.sum().clamp(min=1)
