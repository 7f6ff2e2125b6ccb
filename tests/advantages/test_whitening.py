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


def test_two_values_have_a_variance_and_1e_8_is_added_to_it():
    # the sample variance of 0 and 2e-4 is 2e-8, and 1e-4 / sqrt(2e-8 + 1e-8) = 1 / sqrt(3)
    values = torch.tensor([0.0, 2e-4], dtype=torch.float64)
    expected = torch.tensor([-0.5773502691896258, 0.5773502691896258], dtype=torch.float64)
    torch.testing.assert_close(whiten(values, torch.tensor([True, True])), expected)


def test_what_counts_as_rounding_grows_with_the_values():
    mask = torch.tensor([True, True])
    # float32 has 1 / 16 between 1e6 and its neighbour, and tells 1e-6 from 2e-6 well
    assert not whiten(torch.tensor([1e6, 1e6 + 1 / 16]), mask).any()
    # the variance, 5e-13, is next to nothing beside 1e-8: 5e-7 / 1e-4
    expected = torch.tensor([-5e-3, 5e-3])
    torch.testing.assert_close(
        whiten(torch.tensor([1e-6, 2e-6]), mask), expected, rtol=1e-3, atol=0
    )
