import torch

from vagentrl.losses import value_loss

VALUES = torch.tensor([[1.0, 3.0, 1.0]])
OLD = torch.tensor([[0.0, 0.0, 2.0]])
RETURNS = torch.tensor([[2.0, 1.0, 1.0]])


def test_without_a_clip_it_is_half_the_squared_error():
    # errors -1, 2, 0
    expected = torch.tensor([[0.5, 2.0, 0.0]])
    torch.testing.assert_close(value_loss(VALUES, OLD, RETURNS, clip=None), expected)


def test_the_worse_of_the_value_and_the_clipped_value_counts():
    # clipped to within 0.5 of the old: 0.5, 0.5, 1.5, so errors -1.5, -0.5, 0.5
    # the larger squares: 2.25, 4, 0.25
    expected = torch.tensor([[1.125, 2.0, 0.125]])
    torch.testing.assert_close(value_loss(VALUES, OLD, RETURNS, clip=0.5), expected)


def test_a_value_that_has_moved_far_enough_gets_no_gradient():
    values = VALUES.clone().requires_grad_()
    value_loss(values, OLD, RETURNS, clip=0.5).sum().backward()
    # only the second token is still charged for its own value: 3 - 1
    torch.testing.assert_close(values.grad, torch.tensor([[0.0, 2.0, 0.0]]))
