from contextlib import nullcontext

import pytest
import torch

from tests import toy
from vagentrl.models.value_head import ValueHead
from vagentrl.modules.critic import CriticModule
from vagentrl.rollout.collate import collate


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


@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "bf16-mixed"])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=["kept", "by-deepspeed"])
def test_values_are_computed_in_float32(mixed: bool, weights: torch.dtype):
    head = ValueHead(64).to(weights)
    torch.nn.init.normal_(head.weight)
    torch.nn.init.constant_(head.bias, 10.9)
    states = torch.randn(2, 50, 64, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
        values = head(states)
    exact = (states.double() @ head.weight.double().T + head.bias.double()).squeeze(-1)
    assert float((values - exact).detach().abs().max()) < 1e-4  # in bfloat16 0.06
    values.sum().backward()
    assert head.weight.grad is not None and head.weight.grad.dtype == weights


def test_the_critic_of_a_bfloat16_policy_has_a_float32_head():
    policy = toy.model(dtype=torch.bfloat16)
    critic = CriticModule(policy, policy.base_model)  # pyright: ignore
    torch.nn.init.constant_(critic.value_head.bias, 10.9)
    values = critic(collate([toy.play([toy.GO])], toy.renderer(), temperature=1.0))
    assert critic.value_head.weight.dtype == torch.float32
    torch.testing.assert_close(values, torch.full_like(values, 10.9))
