"""Whether a run fits into given GPUs, and what is proposed if it does not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import runs
from vagentrl.cli.main import main
from vagentrl.cli.memory import GIB, Shards, memory_plan, totals
from vagentrl.cli.verdict import USABLE, Setup, verdict

MIB = 2**20


def setup_of(*arguments: str, device_bytes: float = GIB, devices: int = 1) -> Setup:
    run = runs.prepare(*arguments)
    run.model.build(banned_ids=frozenset(), meta=True)
    return Setup(run.model, run.datamodule, Shards(devices), device_bytes)


def item(setup: Setup, name: str) -> Any:
    plan = memory_plan(setup.agent, setup.data, setup.shards, setup.device_bytes)
    return next(item for item in plan if item.name == name)


def test_a_run_fits_up_to_the_share_of_a_device_that_may_be_planned():
    setup = setup_of()
    needed = setup.needed()
    said = verdict(replace(setup, device_bytes=1.001 * needed / USABLE))
    assert said.startswith("it FITS into 1 device of ")
    said = verdict(replace(setup, device_bytes=0.999 * needed / USABLE, shards=Shards(1)))
    assert said.startswith("it DOES NOT FIT into 1 device of ")


def test_every_change_that_is_said_to_fit_does():
    setup = setup_of("--data.micro_batch_size=8", "--data.engine=TransformersEngine")
    setup = replace(setup, device_bytes=0.8 * setup.needed() / USABLE)
    said = verdict(setup)
    assert ", fits" in said
    [line] = [line for line in said.splitlines() if "data.context_length:" in line]
    tokens = int(line.split("data.context_length: ")[1].split()[0])
    assert setup.with_data(wanted_context=tokens).fits()
    assert not setup.with_data(wanted_context=tokens + 1).fits()
    one_row = setup.with_data(micro_batch_size=1)
    assert ("micro_batch_size: 1" in said) == (one_row.needed() < setup.needed())
    assert setup.data.micro_batch_size == 8  # proposals leave the run as it is


def test_a_run_without_a_context_length_is_told_so_only_if_it_does_not_fit():
    setup = setup_of()
    setup = setup.with_data(wanted_context=None)
    small = replace(setup, device_bytes=setup.needed() / 2)
    assert "data.context_length is not set, so rows of" in verdict(small)
    assert "is not set" not in verdict(small.with_data(wanted_context=512))
    assert "is not set" not in verdict(replace(setup, device_bytes=GIB * 1000))


def test_more_devices_are_proposed_in_powers_of_two_that_fit():
    setup = setup_of(devices=2)
    plan = list(memory_plan(setup.agent, setup.data, Shards(8, 2)))
    setup = replace(setup, device_bytes=totals(plan)["learning"] / USABLE)
    if setup.fits():
        pytest.skip("nothing to propose")
    fewer = replace(setup, shards=Shards(4, 2))
    assert not fewer.fits()
    assert "8 devices (trainer.devices times trainer.num_nodes) with trainer.strategy" in verdict(
        setup
    )


def vllm(**engine: Any) -> Setup:
    arguments = [f"--data.engine.{name}={value}" for name, value in engine.items()]
    return setup_of("--data.engine=VLLMEngine", *arguments)


def test_vllm_takes_its_share_of_the_device_for_keys_and_values():
    setup = vllm(gpu_memory_utilization=0.25)
    weights = item(setup, "vLLM's weights").size
    assert item(setup, "vLLM's keys and values").size == GIB / 4 - weights
    assert weights == item(setup, "actor").size
    assert setup.needed() > GIB / 4


def test_vllm_needs_room_for_one_episode_even_where_its_share_has_none():
    setup = replace(vllm(gpu_memory_utilization=0.25), device_bytes=MIB)
    cache = item(setup, "vLLM's keys and values")
    assert cache.size > 0
    assert "at least one episode that fills the context" in cache.how
    unknown = list(memory_plan(setup.agent, setup.data, setup.shards))
    assert next(i for i in unknown if i.name == cache.name).size == cache.size


def test_vllms_weights_have_the_type_of_mixed_precision():
    setup = vllm()
    whole = item(setup, "vLLM's weights").size
    setup.data.engine.dtype = torch.bfloat16
    assert item(setup, "vLLM's weights").size == whole / 2


def test_check_gives_the_verdict_for_the_gpus_that_are_named(
    capsys: pytest.CaptureFixture[str], run_dir: Any, monkeypatch: pytest.MonkeyPatch
):
    main(["check", *runs.arguments(), "--gpu_memory=80"])
    assert "it FITS into 1 device of 80 GiB" in capsys.readouterr().out
    main(["check", *runs.arguments(), "--gpu_memory=0.001"])
    assert "it DOES NOT FIT into 1 device of 0.001 GiB" in capsys.readouterr().out
    cuda = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setattr("vagentrl.cli.check.torch", SimpleNamespace(cuda=cuda))
    main(["check", *runs.arguments()])
    assert "give --gpu_memory GIB" in capsys.readouterr().out
