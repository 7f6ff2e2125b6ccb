from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2Model
from transformers.modeling_layers import GradientCheckpointingLayer

from tests import runs
from vagentrl.cli.memory import (
    GIB,
    Item,
    Shards,
    activations,
    kv_bytes_per_token,
    memory_plan,
    table,
)


def zero(**settings: Any) -> dict[str, Any]:
    return {"class_path": "lightning.pytorch.strategies.DeepSpeedStrategy", "init_args": settings}


@pytest.mark.parametrize(
    ("strategy", "devices", "nodes", "wanted"),
    [
        ("auto", "auto", 1, Shards(1, 0)),
        ("ddp", 4, 2, Shards(8, 0)),
        ("deepspeed", 2, 1, Shards(2, 2)),  # Lightning's default stage
        ("deepspeed_stage_3_offload", [0, 1], 1, Shards(2, 3, offloads=True)),
        ("deepspeed_stage_2_offload", 1, 1, Shards(1, 2, offloads=True)),
        (zero(stage=1, offload_optimizer=True), 2, 1, Shards(2, 1, offloads=True)),
        (zero(offload_optimizer=False), 2, 1, Shards(2, 2)),
        (
            zero(config={"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}),
            1,
            1,
            Shards(1, 2, offloads=True),
        ),
        (zero(config="settings.json"), 1, 1, Shards(1, 2)),
        ({"class_path": "x.DeepSpeedStrategy", "init_args": {"stage": 1}}, 4, 1, Shards(4, 1)),
        ("fsdp", -1, 1, Shards(1, 3, fsdp=True)),
    ],
)
def test_what_devices_share_follows_from_the_trainer(
    strategy: Any, devices: Any, nodes: int, wanted: Shards
):
    assert Shards.of(strategy, devices, nodes) == wanted


def test_each_stage_shares_what_it_is_named_for():
    shares = [[Shards(4, stage).share(of) for of in (1, 2, 3)] for stage in range(4)]
    assert shares == [[1, 1, 1], [0.25, 1, 1], [0.25, 0.25, 1], [0.25, 0.25, 0.25]]


def test_keys_and_values_of_a_token_are_counted_as_grouped():
    config = Qwen2Config(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2
    )
    # 2 (keys, values) x 3 layers x 2 heads x 8 wide x 2 bytes
    assert kv_bytes_per_token(config, 2) == 192


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("layers", "ratio", "kv_heads"), [(2, 4, 8), (6, 2, 8), (4, 3, 2)])
def test_what_is_reckoned_for_activations_is_enough_and_not_twice_as_much(
    checkpointed: bool, dtype: torch.dtype, layers: int, ratio: int, kv_heads: int
):
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=128,
        intermediate_size=128 * ratio,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
    )
    model: Any = Qwen2Model(config)
    model.to(dtype).eval()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True
    tokens = 256
    saved = saved_bytes(model, torch.zeros(1, tokens, dtype=torch.long))
    reckoned = activations(config, checkpointed) * tokens * dtype.itemsize
    if checkpointed:  # what one layer keeps in its backward pass was not there to be counted
        reckoned -= (13 + 4 * ratio) * 128 * tokens * dtype.itemsize
    assert saved <= reckoned <= 2 * saved


def saved_bytes(model: torch.nn.Module, ids: torch.Tensor) -> int:
    """What autograd keeps for the backward pass, the weights aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(input_ids=ids, use_cache=False).last_hidden_state
    assert output.requires_grad
    return sum(kept.values())


def test_a_phase_counts_what_is_there_in_it():
    items = [
        Item("weights", 2 * GIB, "all"),
        Item("activations", 3 * GIB, "these", "learn"),
        Item("cache", GIB, "those", "sample"),
    ]
    lines = table(items).splitlines()
    assert [line.split()[-1] for line in lines[-2:]] == ["5.00", "3.00"]


def test_what_is_in_main_memory_is_told_apart():
    items = [
        Item("weights", 2 * GIB, "all"),
        Item("moments", 9 * GIB, "all", on_host=True),
        Item("activations", 3 * GIB, "these", "learn"),
    ]
    lines = table(items).splitlines()
    at = lines.index("in main memory, for each device")
    assert [line.split()[-1] for line in lines[at - 2 : at]] == ["5.00", "2.00"]
    assert [line.split() for line in lines[at + 1 :]] == [["moments", "9.00", "all"]]


def plan(*settings: str, shards: Shards = Shards()) -> dict[str, Item]:  # noqa: B008 (frozen)
    run = runs.prepare(*settings)
    run.model.build(banned_ids=frozenset(), meta=True)
    return {item.name: item for item in memory_plan(run.model, run.datamodule, shards)}


def test_an_offloaded_optimizer_takes_main_memory_and_no_device():
    kept, moved = plan(shards=Shards(2, 2)), plan(shards=Shards(2, 2, offloads=True))
    weights = kept["actor"].size  # float32: 4 bytes a number, and 4 of its gradient
    assert kept["actor, to learn"].size == (4 + 8) / 4 * weights / 2
    assert moved["actor, to learn"].size == weights / 2
    assert moved["actor, offloaded"].on_host
    assert moved["actor, offloaded"].size == 16 / 4 * weights / 2


def test_activations_are_those_of_the_largest_pass():
    def held(*settings: str) -> float:
        return plan("--data.context_length=100", *settings)["activations"].size

    by_rows = held("--data.micro_batch_size=3")  # 300 tokens
    tokens = "--data.micro_batch_size=null"
    assert held(tokens, "--data.micro_batch_tokens=600") == 2 * by_rows
    assert 3 * held(tokens, "--data.micro_batch_tokens=50") == by_rows  # a row is read whole


def test_an_engine_that_samples_from_a_copy_holds_the_weights_twice():
    shared = plan("--data.engine=TransformersEngine")
    copied = plan("--data.engine=TransformersEngine", "--data.engine.own_copy=true")
    assert "the engine's weights" not in shared
    assert copied["the engine's weights"].size == copied["actor"].size
    assert copied["keys and values"].size == shared["keys and values"].size > 0


@pytest.mark.parametrize("where", ["url=http://127.0.0.1:1", "devices=1"])
def test_a_server_elsewhere_takes_nothing_of_the_trainers_devices(where: str):
    found = plan("--data.engine=VLLMServerEngine", f"--data.engine.{where}")
    assert "keys and values" not in found
    assert found["vLLM's server"].size == 0


def test_a_server_beside_the_trainer_takes_what_it_is_given():
    found = plan("--data.engine=VLLMServerEngine", "--data.engine.kv_cache_gb=2")
    assert found["vLLM's keys and values"].size == 2 * GIB
    assert found["vLLM's weights"].size == found["actor"].size
    assert all(found[f"vLLM's {part}"].when == "always" for part in ("weights", "keys and values"))


@pytest.mark.parametrize("where", ["urls=[http://a:1]", "servers=2", "servers=1"])
def test_a_fleet_takes_what_its_servers_beside_the_trainer_are_given(where: str):
    found = plan("--data.engine=VLLMFleet", f"--data.engine.{where}", "--data.engine.kv_cache_gb=3")
    count = 0 if where.startswith("urls") else int(where[-1])
    total = sum(item.size for name, item in found.items() if name.startswith("vLLM"))
    assert total == count * (found["actor"].size + 3 * GIB)
    assert "keys and values" not in found
