import torch

from vagentrl.advantages import whiten


def test_masked_values_get_zero_mean_and_unit_variance():
    values = torch.tensor([[1.0, 99.0, 2.0], [3.0, 99.0, 99.0]])
    mask = torch.tensor([[True, False, True], [True, False, False]])
    # 1, 2, 3: mean 2, sample deviation 1
    expected = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(whiten(values, mask), expected)


def test_fewer_than_two_values_give_zero():
    values = torch.tensor([5.0, 7.0])
    assert not whiten(values, torch.tensor([True, False])).any()
    assert not whiten(values, torch.tensor([False, False])).any()


def test_equal_values_stay_near_zero():
    values = torch.full((1000,), 0.1)
    assert float(whiten(values, values > 0).abs().max()) < 1e-3
