"""The critic's loss, and how well the critic does."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def value_loss(
    values: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    *,
    clip: float | None,
) -> Float[Tensor, "B T"]:
    """Half the squared error per token, clipped around the old values (OpenAI Baselines' PPO2).

    Args:
        values: Values now, with gradient.
        old_values: Values when the batch was scored.
        returns: What the critic regresses to.
        clip: A value further than this from its old one gains nothing by moving on; None clips
            nothing.

    Returns:
        The loss of each token; meaningless off the action mask.
    """
    error = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return 0.5 * error


def explained_variance(
    values: Float[Tensor, "B T"], returns: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"]
) -> float:
    """Share of the variance of the returns that the values explain, over the action mask.

    1 is a perfect critic and 0 one that knows only the mean; below 0 the values are worse than
    that. Where the returns are equal up to rounding there is nothing to explain, and it is 0.
    """
    wanted, seen = (tensor[action_mask].cpu().double() for tensor in (returns, values))
    if len(wanted) < 2:
        return 0.0
    spread = wanted.std()
    if spread <= 1e-6 * wanted.abs().max():
        return 0.0
    return float(1 - (wanted - seen).var() / spread.square())
