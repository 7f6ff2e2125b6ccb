"""What can be said of FSDP2 within one process; tests/end_to_end/test_parity.py has two."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, StrategyRegistry
from torch import nn

from tests import runs
from tests.engines.shipped import IMAGES
from vagentrl.cli.memory import Shards
from vagentrl.errors import ConfigError
from vagentrl.models.load import load_model
from vagentrl.models.sharded import full, full_state, is_sharded
from vagentrl.modules import fsdp2
from vagentrl.modules.data_checks import check_ranks
from vagentrl.modules.trainer_checks import check_trainer


def test_a_configuration_names_it():
    assert type(StrategyRegistry.get("fsdp2")) is fsdp2.FSDP2
    assert type(runs.prepare("--trainer.strategy=fsdp2").trainer.strategy) is fsdp2.FSDP2
    assert Shards.of("fsdp2", 4, 2) == Shards(8, 3, fsdp=True)


@pytest.mark.parametrize("strategy", [FSDPStrategy, ModelParallelStrategy])
def test_other_ways_to_shard_the_models_are_refused(strategy: type):
    run = runs.prepare()
    run.trainer._accelerator_connector.strategy = strategy()
    with pytest.raises(ConfigError, match=f"{strategy.__name__}, which .* set it to fsdp2"):
        check_trainer(run.trainer, "fit")


def test_float16_is_refused():
    run = runs.prepare("--trainer.strategy=fsdp2")
    run.trainer.precision_plugin.precision = "16-mixed"  # pyright: ignore
    with pytest.raises(ConfigError, match="set precision to bf16-mixed"):
        check_trainer(run.trainer, "fit")


def test_several_ranks_may_share_the_weights():
    check_ranks(runs.prepare("--data.groups=4").datamodule, fsdp2.FSDP2(), 2)


def test_the_checkpoint_of_another_strategy_is_refused(tmp_path: Path):
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ConfigError, match=r"was not saved by FSDP2.*vagentrl export"):
        fsdp2.FSDP2().load_checkpoint(path)


def test_the_layers_of_the_language_model_are_gathered_one_by_one():
    policy = load_model(IMAGES)
    layers = fsdp2._decoder_layers(policy.base_model)  # pyright: ignore
    assert layers == list(policy.base_model.language_model.layers)  # pyright: ignore


@pytest.mark.parametrize("shown", [True, False])
def test_a_vision_tower_that_saw_nothing_gets_zero_gradients(shown: bool):
    backbone = nn.Module()
    backbone.visual = nn.Linear(2, 3)
    states = torch.ones(1, 4, requires_grad=True)
    kwargs = {"pixel_values": 1} if shown else {}
    output = SimpleNamespace(last_hidden_state=states)
    fsdp2._touch_unused_vision(backbone, (), kwargs, output)
    (2 * output.last_hidden_state).sum().backward()
    assert torch.equal(states.grad, torch.full((1, 4), 2.0))  # pyright: ignore
    gradients = [weight.grad for weight in backbone.parameters()]
    if shown:
        assert gradients == [None, None]
    else:
        assert [g.tolist() for g in gradients if g is not None] == [[[0.0] * 2] * 3, [0.0] * 3]


def test_a_whole_module_is_gathered_as_it_is():
    module = nn.Linear(2, 3)
    assert not is_sharded(module)
    assert full(module.weight) is module.weight
    assert [name for name, _ in full_state(module)] == ["weight", "bias"]


def test_a_trainer_may_be_given_an_instance():
    assert isinstance(Trainer(strategy=fsdp2.FSDP2(), accelerator="cpu").strategy, fsdp2.FSDP2)
