"""Gradients of 0 for what a loss leaves out."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vagentrl.modules.unused_weights import touch


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, dtype=dtype))


def test_the_loss_keeps_its_value_and_its_gradients_and_the_rest_get_0():
    used, unused, half = weight(2), weight(3, 4), weight(5, dtype=torch.bfloat16)
    loss = (used * torch.tensor([2.0, 3.0])).sum()
    touched = touch(loss, [used, unused, half])
    assert touched.item() == 5
    touched.backward()
    assert used.grad is not None and used.grad.tolist() == [2, 3]
    for left_out in (unused, half):
        assert left_out.grad is not None and left_out.grad.dtype == left_out.dtype
        assert left_out.grad.shape == left_out.shape and not left_out.grad.any()


def test_a_gradient_of_0_is_one_number_in_the_backward_pass():
    used, unused = weight(2), weight(1000, 1000)
    sizes: list[int] = []
    unused.register_hook(lambda gradient: sizes.append(gradient.untyped_storage().nbytes()))
    touch(used.sum(), [used, unused]).backward()
    assert sizes == [4]


def test_weights_that_the_loss_depends_on_get_its_gradient_alone():
    used, read = weight(2, 2), weight(2, 2)
    arrived: list[Tensor] = []
    for each in (used, read):
        each.register_hook(arrived.append)
    recomputed: Tensor = checkpoint(lambda x: x @ used, read, use_reentrant=False)  # pyright: ignore
    loss = recomputed.square().sum()
    touched = touch(loss, [used, read])
    assert touched is loss  # nothing is left out
    touched.backward()
    assert len(arrived) == 2


def test_what_is_left_out_stays_0_in_a_loss_that_is_not_finite():
    used, unused = weight(1), weight(2)
    touch((used * torch.nan).sum(), [unused]).backward()
    assert unused.grad is not None and unused.grad.tolist() == [0, 0]


def test_gradients_of_micro_batches_add_up():
    one, other = weight(1), weight(1)
    for used in (one, other, one):
        touch(used.sum(), [one, other]).backward()
    assert one.grad is not None and other.grad is not None
    assert [one.grad.item(), other.grad.item()] == [2, 1]
