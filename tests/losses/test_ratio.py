import torch

from vagentrl.losses import masked_mean, probability_ratio


def test_a_ratio_is_the_quotient_of_two_probabilities():
    new, old = torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.8]).log()
    torch.testing.assert_close(probability_ratio(new, old), torch.tensor([2.0, 0.25]))


def test_a_ratio_stays_between_e_to_the_minus_20_and_e_to_the_20():
    logs = torch.tensor([-1e4, -20.5, -19.5, 19.5, 20.5, 1e4], dtype=torch.float64)
    expected = torch.tensor([-20.0, -20.0, -19.5, 19.5, 20.0, 20.0], dtype=torch.float64).exp()
    ratio = probability_ratio(logs, torch.zeros_like(logs))
    torch.testing.assert_close(ratio, expected, rtol=1e-6, atol=0)  # e^-20 is 2e-9


def test_a_masked_mean_divides_by_the_number_of_values_that_count():
    values = torch.tensor([3.0, 5.0, 100.0])
    assert masked_mean(values, torch.tensor([True, False, False])) == 3
    assert masked_mean(values, torch.tensor([True, True, False])) == 4
    assert masked_mean(values, torch.tensor([False, False, False])) == 0
