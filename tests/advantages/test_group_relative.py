import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vagentrl.advantages import group_relative


def test_each_group_is_measured_against_its_own_mean_and_deviation():
    returns = torch.tensor([1.0, 5.0, 0.0, 9.0])
    groups = torch.tensor([7, 9, 7, 9])  # neither dense nor sorted
    # group 7: mean 0.5, sample deviation sqrt(0.5) = 0.70711 -> +-0.5 / 0.70711 = +-0.70711
    # group 9: mean 7, sample deviation sqrt(8) = 2.82843 -> -+2 / 2.82843 = -+0.70711
    expected = torch.tensor([0.70711, -0.70711, -0.70711, 0.70711])
    torch.testing.assert_close(group_relative(returns, groups), expected, rtol=1e-5, atol=1e-5)


def test_without_scale_only_the_mean_is_taken_off():
    returns = torch.tensor([1.0, 0.0, 5.0])
    groups = torch.tensor([0, 0, 1])
    # group 0: mean 0.5; group 1: alone
    expected = torch.tensor([0.5, -0.5, 0.0])
    torch.testing.assert_close(group_relative(returns, groups, scale=None), expected)


def test_leave_one_out_compares_with_the_others():
    returns = torch.tensor([1.0, 2.0, 6.0])
    groups = torch.tensor([3, 3, 3])
    # 1 - (2 + 6) / 2 = -3 ; 2 - (1 + 6) / 2 = -1.5 ; 6 - (1 + 2) / 2 = 4.5
    actual = group_relative(returns, groups, scale=None, baseline="leave_one_out")
    torch.testing.assert_close(actual, torch.tensor([-3.0, -1.5, 4.5]))


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9))
def test_leave_one_out_is_the_mean_baseline_times_n_over_n_minus_1(members: list[float]):
    returns = torch.tensor(members, dtype=torch.float64)
    groups = torch.zeros(len(members), dtype=torch.long)
    centred = group_relative(returns, groups, scale=None)
    actual = group_relative(returns, groups, scale=None, baseline="leave_one_out")
    torch.testing.assert_close(actual, centred * len(members) / (len(members) - 1))


@pytest.mark.parametrize("scale", ["std", None])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_a_group_of_one_gets_zero(scale, baseline):
    actual = group_relative(
        torch.tensor([3.0, -2.0]), torch.tensor([4, 1]), scale=scale, baseline=baseline
    )
    assert actual.tolist() == [0.0, 0.0]


def test_equal_returns_are_exactly_zero():
    # sixteen times 0.1 in float32 sums to 1.6000001: a naive mean leaves 7e-9, over 1e-6
    returns = torch.full((16,), 0.1)
    assert not group_relative(returns, torch.zeros(16, dtype=torch.long)).any()


def test_no_trajectories_give_no_advantages():
    empty = torch.zeros(0)
    assert group_relative(empty, empty.long()).shape == (0,)


def test_1e_6_is_added_to_the_deviation():
    # of 0 and 2e-6 it is sqrt(2) * 1e-6, and 1 / (sqrt(2) + 1) = sqrt(2) - 1
    returns = torch.tensor([0.0, 2e-6], dtype=torch.float64)
    expected = torch.tensor([1 - 2**0.5, 2**0.5 - 1], dtype=torch.float64)
    torch.testing.assert_close(group_relative(returns, torch.tensor([0, 0])), expected)


@pytest.mark.parametrize("sign", [1, -1])
def test_returns_that_differ_by_a_rounding_of_float32_are_equal(sign: int):
    returns = sign * torch.tensor([1e6, 1e6 + 1 / 16])  # neighbours
    assert not group_relative(returns, torch.tensor([3, 3])).any()


def test_what_all_members_have_costs_no_digits():
    # the mean of 0, 1/4 and 1/4 is 1/6
    returns = torch.tensor([0.0, 0.25, 0.25], dtype=torch.float64) + 2**30
    expected = torch.tensor([-1 / 6, 1 / 12, 1 / 12], dtype=torch.float64)
    found = group_relative(returns, torch.tensor([0, 0, 0]), scale=None)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
