"""Which AdamW steps the weights, and where its states are."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, SingleDeviceStrategy
from torch import nn

from tests.modules.agents import BenchAgent
from vagentrl.errors import ConfigError
from vagentrl.modules import deepspeed
from vagentrl.modules.optimizer import AdamW

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("fused", "device", "precision", "wanted"),
    [
        (None, GPU, "bf16-mixed", True),
        (None, GPU, "16-mixed", False),
        (None, CPU, "32-true", False),  # what a recipe computes on a CPU stays as it was
        (True, CPU, "32-true", True),
        (False, GPU, "32-true", False),
        (False, GPU, "16-mixed", False),
    ],
)
def test_one_kernel_steps_on_gpus_unless_told_otherwise(
    fused: bool | None, device: torch.device, precision: str, wanted: bool
):
    assert AdamW(fused=fused).is_fused(device, precision) is wanted


def test_a_fused_step_that_would_be_clipped_while_scaled_is_refused():
    with pytest.raises(ConfigError, match=r"model\.optimizer\.fused is true"):
        AdamW(fused=True).is_fused(GPU, "16-mixed")


@pytest.mark.parametrize("fused", [False, True])
def test_a_fused_step_is_the_step_of_torchs_default(fused: bool):
    layer = nn.Linear(2, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    optimizer = AdamW(actor_lr=0.1, weight_decay=0.5).build({"actor": layer}, fused=fused)
    layer.weight.grad = torch.tensor([[3.0, -0.5]])
    optimizer.step()
    # 1 - 0.1 * 0.5 = 0.95; the first step of Adam has the length of the rate
    torch.testing.assert_close(layer.weight.data, torch.tensor([[0.85, 1.05]]))
    assert bool(optimizer.param_groups[0]["fused"]) is fused


CPU_OFFLOAD = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"stage": 2}, False),
        ({"stage": 1, "offload_optimizer": True}, True),
        ({"offload_optimizer": True, "offload_optimizer_device": "nvme"}, True),
        ({"config": {"train_batch_size": 1}}, False),
        ({"config": {"zero_optimization": {"offload_optimizer": None}}}, False),
        ({"config": CPU_OFFLOAD}, True),
        ({"config": CPU_OFFLOAD | {"zero_force_ds_cpu_optimizer": False}}, False),
    ],
)
def test_deepspeeds_own_adamw_is_wanted_where_the_states_are_in_main_memory(
    settings: dict[str, Any], wanted: bool
):
    pytest.importorskip("deepspeed")
    assert deepspeed.offloads(DeepSpeedStrategy(**settings)) is wanted


def test_a_strategy_without_deepspeed_offloads_nothing():
    assert not deepspeed.offloads(SingleDeviceStrategy("cpu"))


class FakeAdam(torch.optim.AdamW):
    """Has the arguments of DeepSpeedCPUAdam."""

    def __init__(self, groups: Any, *, adamw_mode: bool, **settings: Any) -> None:
        assert adamw_mode
        super().__init__(groups, **settings)


def installed(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    module = ModuleType("deepspeed.ops.adam")
    module.DeepSpeedCPUAdam = kind  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "deepspeed.ops.adam", module)


def offloading_agent() -> BenchAgent:
    pytest.importorskip("deepspeed")
    agent = BenchAgent(optimizer=AdamW(actor_lr=0.25, critic_lr=0.5, eps=0.125, betas=(0.5, 0.75)))
    agent.trainer.strategy = DeepSpeedStrategy(offload_optimizer=True)
    return agent


def test_a_strategy_that_offloads_gets_it_with_the_same_settings(monkeypatch: pytest.MonkeyPatch):
    installed(monkeypatch, FakeAdam)
    optimizer = offloading_agent().configure_optimizers()
    assert isinstance(optimizer, FakeAdam)
    actor, critic = optimizer.param_groups
    assert [(group["name"], group["lr"]) for group in (actor, critic)] == [
        ("actor", 0.25),
        ("critic", 0.5),
    ]
    assert (actor["eps"], actor["betas"], actor["weight_decay"]) == (0.125, (0.5, 0.75), 0)


def test_without_a_compiler_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: Any, **settings: Any) -> None:
        raise RuntimeError("Unable to JIT load the cpu_adam op due to ninja not being installed.")

    installed(monkeypatch, broken)
    with pytest.raises(ConfigError, match=r"compiled here: Unable to JIT .* choose deepspeed"):
        offloading_agent().configure_optimizers()


@pytest.mark.parametrize("steps", [4, torch.tensor(4.0)], ids=["number", "tensor"])
def test_the_steps_of_a_resting_group_are_counted_back(steps: Any):
    actor, critic = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizer = AdamW().build({"actor": actor, "critic": critic})
    for each in (actor.weight, critic.weight):
        optimizer.state[each]["step"] = steps + 0
    deepspeed.rewind(optimizer, "actor")
    assert float(optimizer.state[actor.weight]["step"]) == 0
    assert float(optimizer.state[critic.weight]["step"]) == 4
