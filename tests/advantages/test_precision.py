from types import SimpleNamespace

import torch

from vagentrl.advantages.precision import precise, rounding


class OnMps(torch.Tensor):
    """A tensor that says that it lies on a device without float64."""

    device = SimpleNamespace(type="mps")  # pyright: ignore


def test_credit_is_computed_in_float64_where_there_is_one():
    assert precise(torch.zeros(2)).dtype == torch.float64
    there = torch.zeros(2).as_subclass(OnMps)
    assert precise(there) is there


def test_rounding_is_a_bit_of_float32_and_what_a_sum_of_many_loses_in_float64():
    assert rounding(torch.float32) == 2**-23
    assert rounding(torch.float64) == 1e-12
