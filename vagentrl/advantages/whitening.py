"""Zero mean and unit variance over the tokens that count."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vagentrl.advantages.precision import precise, rounding


def whiten(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Subtract the mean and divide by the sample standard deviation, both over ``mask``.

    The divisor is ``sqrt(variance + 1e-8)``. Values that are equal up to rounding give exactly 0,
    and so do fewer than two values: they have no spread.

    Returns:
        The whitened values in the dtype of ``values``, 0 off the mask; computed in float64.
    """
    kept = precise(values[mask])
    whitened = torch.zeros_like(values)
    noise = 8 * rounding(values.dtype)  # of a short sum
    if len(kept) < 2 or kept.max() - kept.min() <= noise * kept.abs().max():
        return whitened
    variance, mean = torch.var_mean(kept)
    kept = (kept - mean) * (variance + 1e-8).rsqrt()
    return whitened.masked_scatter(mask, kept.to(values.dtype))
