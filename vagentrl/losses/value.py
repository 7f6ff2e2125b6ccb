"""The critic's loss."""

import torch
from jaxtyping import Float
from torch import Tensor


def value_loss(
    values: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    *,
    clip: float | None,
) -> Float[Tensor, "B T"]:
    """Half the squared error per token, clipped around the old values (OpenAI Baselines' PPO2).

    A value further than ``clip`` from its old one earns nothing by moving on; None clips nothing.
    """
    error = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return 0.5 * error
