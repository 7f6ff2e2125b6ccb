"""Probability ratios that stay finite, and what they say about an update."""

from jaxtyping import Bool, Float
from torch import Tensor


def probability_ratio(
    logprobs: Float[Tensor, "*shape"], old_logprobs: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """``exp(logprobs - old_logprobs)``, between e^-20 and e^20.

    Tokens that do not count are multiplied by a weight of 0 later; an overflow there would turn
    into NaN (0 times infinity), in the loss and in the gradient.
    """
    return (logprobs - old_logprobs).clamp(-20.0, 20.0).exp()


def masked_mean(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean of the values under ``mask``; 0 when it is empty."""
    return values[mask].sum() / mask.sum().clamp(min=1)
