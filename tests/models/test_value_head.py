import pytest
import torch

from vagentrl.models.value_head import ValueHead


def test_every_state_starts_with_value_0():
    assert not ValueHead(8)(torch.randn(2, 5, 8)).any()


def test_a_value_is_a_weighted_sum_of_the_state():
    head = ValueHead(2)
    torch.nn.init.constant_(head.weight, 2.0)
    torch.nn.init.constant_(head.bias, 0.5)
    # 2 * (1 + 3) + 0.5, 2 * (0 - 1) + 0.5
    states = torch.tensor([[[1.0, 3.0], [0.0, -1.0]]])
    torch.testing.assert_close(head(states), torch.tensor([[8.5, -1.5]]))


@pytest.mark.parametrize(
    ("dtype", "wanted"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_values_are_in_float32_at_least(dtype: torch.dtype, wanted: torch.dtype):
    assert ValueHead(4, dtype)(torch.zeros(1, 3, 4, dtype=dtype)).dtype == wanted
