"""Zero mean and unit variance over the tokens that count."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def whiten(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Subtract the mean and divide by the sample standard deviation over ``mask``; 0 elsewhere.

    Fewer than two values have no spread and give 0. The floor under the variance (1e-8) keeps
    equal values at 0 instead of blowing up their rounding.
    """
    kept = values[mask]
    if len(kept) < 2:
        return torch.zeros_like(values)
    variance, mean = torch.var_mean(kept)
    whitened = (kept - mean) * (variance + 1e-8).rsqrt()
    return torch.zeros_like(values).masked_scatter(mask, whitened)
