import pytest
import torch

from vagentrl.losses import explained_variance, value_loss

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


def test_explained_variance_by_hand():
    returns = torch.tensor([[1.0, 2.0, 3.0, 99.0]])
    mask = torch.tensor([[True, True, True, False]])
    # the variance of 1, 2, 3 is 1; what is left of it is that of the errors
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.full_like(returns, 7.0), returns, mask) == 0.0
    halves = torch.tensor([[0.5, 1.0, 1.5, 0.0]])  # errors 0.5, 1, 1.5: variance 1/4
    assert explained_variance(halves, returns, mask) == pytest.approx(0.75)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)  # errors 2, 4, 6


@pytest.mark.parametrize("returned", [0.0, 1.0, 1e6])
def test_equal_returns_leave_nothing_to_explain(returned: float):
    returns = torch.full((2, 3), returned) + 1e-7 * returned * torch.rand(2, 3)
    mask = torch.ones(2, 3, dtype=torch.bool)
    for values in (returns, torch.randn(2, 3)):
        assert explained_variance(values, returns, mask) == 0.0
    one = torch.zeros_like(mask)
    one[0, 0] = True
    assert explained_variance(returns, returns, one) == 0.0


def test_two_tokens_are_enough_for_a_variance():
    returns, values = torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 2.0]])
    # the returns have the variance 2, the errors 0 and 1 have 1/2
    found = explained_variance(values, returns, torch.ones(1, 2, dtype=torch.bool))
    assert found == pytest.approx(0.75)
