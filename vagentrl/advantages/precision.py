"""Arithmetic in float64, and how far rounding may have moved a sum of rewards."""

import torch
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float64, in which credit is computed; unchanged on mps, which has no float64.

    In float32, rounding a discount such as 0.9999 alone is an error of 1e-4 after 8192 tokens, and
    equal rewards sum to different returns in replies of different lengths.
    """
    return tensor if tensor.device.type == "mps" else tensor.double()


def rounding(dtype: torch.dtype) -> float:
    """Relative difference between two numbers of a type that rounding alone may cause.

    At least 1e-12, for what summing many of them in float64 adds. Whatever divides by a spread must
    take a spread within rounding for 0: it is no signal.
    """
    return max(torch.finfo(dtype).eps, 1e-12)
