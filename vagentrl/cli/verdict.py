"""Whether a run fits into the memory of given GPUs, and what to change if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vagentrl.cli.memory import GIB, Item, Shards, memory_plan, totals
from vagentrl.engines import TransformersEngine, VLLMEngine, VLLMFleet, VLLMServerEngine
from vagentrl.models.load import context_length

if TYPE_CHECKING:
    from vagentrl.datamodule import RolloutDataModule
    from vagentrl.modules.agent import AgentModule

USABLE = 0.9
"""Share of a device that may be planned for. The rest is for what is not counted: the libraries,
a vision tower's activations, and gaps between allocations."""
SHORTEST_CONTEXT = 256
"""Tokens; a shorter context than this is not proposed."""
MOST_DEVICES = 1024


@dataclass(frozen=True)
class Setup:
    """A run and the devices on which it is to fit.

    Attributes:
        agent: The module, its models built (the meta device will do).
        data: The datamodule.
        shards: What the devices share.
        device_bytes: Memory of each device.
        lora: Count as if adapters were trained, whose own memory is left out.
    """

    agent: AgentModule
    data: RolloutDataModule
    shards: Shards
    device_bytes: float
    lora: bool = False

    def needed(self) -> float:
        """Bytes that the more demanding phase takes of each device."""
        plan = memory_plan(self.agent, self.data, self.shards, self.device_bytes)
        return max(totals(item for item in plan if not (self.lora and _spared(item))).values())

    def fits(self) -> bool:
        return self.needed() <= USABLE * self.device_bytes

    def with_data(self, **settings: object) -> Setup:
        data = copy(self.data)
        for name, value in settings.items():
            setattr(data, name, value)
        return replace(self, data=data)


def verdict(setup: Setup) -> str:
    """Say whether a run fits into the memory of its devices, and if not, what would make it fit."""
    count, usable = setup.shards.devices, USABLE * setup.device_bytes
    devices = f"{count} device{'s' * (count > 1)} of {setup.device_bytes / GIB:g} GiB"
    room = (
        f"{setup.needed() / GIB:.1f} GiB are needed of each, and {usable / GIB:.1f} can be planned "
        f"({USABLE:.0%}; the rest is for what is not counted)"
    )
    if setup.fits():
        return f"it FITS into {devices}: {room}"
    lines = [f"it DOES NOT FIT into {devices}: {room}"]
    if setup.data.wanted_context is None:
        tokens = context_length(setup.agent.actor.policy.config)
        lines.append(
            f"data.context_length is not set, so rows of {tokens:,} tokens are counted, the "
            "model's longest; set it to the length of the longest episodes"
        )
    changes = [(changed.needed(), what) for what, changed in _changes(setup)]
    lines.append("each of these changes alone would need:")
    lines += [
        f"{needed / GIB:>9.1f} GiB{', fits' if needed <= usable else '':<6} {what}"
        for needed, what in sorted(changes)
        if needed < setup.needed()
    ]
    return "\n".join(lines)


def _spared(item: Item) -> bool:
    """Whether adapters do without it: what training takes, and a reference of its own."""
    return item.name.endswith(", to learn") or item.name == "reference"


def _changes(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Settings that take less memory, each with the run that has it."""
    agent, data = setup.agent, setup.data
    context = min(data.wanted_context or 10**9, context_length(agent.actor.policy.config))
    longest = _largest(
        SHORTEST_CONTEXT, context, lambda n: setup.with_data(wanted_context=n).fits()
    )
    yield (
        f"data.context_length: {longest or SHORTEST_CONTEXT} (or shorter)",
        setup.with_data(wanted_context=longest or SHORTEST_CONTEXT),
    )
    if data.micro_batch_size != 1:
        smallest = {"micro_batch_size": 1, "micro_batch_tokens": None}
        yield "data.micro_batch_size: 1", setup.with_data(**smallest)
    if not agent.gradient_checkpointing:
        checkpointed = copy(agent)
        checkpointed.gradient_checkpointing = True
        yield "model.gradient_checkpointing: true", replace(setup, agent=checkpointed)
    if agent.lora is None:
        yield "model.lora.rank: 32 (and the memory of the adapters)", replace(setup, lora=True)
    yield from _other_engines(setup)
    if setup.shards.stage < 2:
        sharded = replace(setup.shards, stage=2)
        if sharded.devices > 1:
            yield "trainer.strategy: deepspeed_stage_2", replace(setup, shards=sharded)
    stage = max(setup.shards.stage, 2)
    more = _smallest_power(
        lambda n: replace(setup, shards=replace(setup.shards, devices=n, stage=stage)).fits()
    )
    if more is not None and more > setup.shards.devices:
        strategy = "" if setup.shards.stage >= 2 else " with trainer.strategy: deepspeed_stage_2"
        yield (
            f"{more} devices (trainer.devices times trainer.num_nodes){strategy}",
            replace(setup, shards=replace(setup.shards, devices=more, stage=stage)),
        )


def _other_engines(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Engines that take less memory of the trainer's devices."""
    engine = setup.data.engine
    if isinstance(engine, VLLMEngine):
        for share in (0.4, 0.3, 0.2, 0.1):
            if share < engine.options["gpu_memory_utilization"] and engine.kv_cache_gb is None:
                smaller = copy(engine)
                smaller.options = engine.options | {"gpu_memory_utilization": share}
                yield (
                    f"data.engine.gpu_memory_utilization: {share}",
                    setup.with_data(engine=smaller),
                )
        if not engine.sleep:
            sleeping = copy(engine)
            sleeping.sleep = True
            yield "data.engine.sleep: true", setup.with_data(engine=sleeping)
    elif isinstance(engine, TransformersEngine):
        workers = _largest(
            1, setup.data.max_workers, lambda n: setup.with_data(max_workers=n).fits()
        )
        if workers is not None and workers < setup.data.max_workers:
            yield f"data.max_workers: {workers}", setup.with_data(max_workers=workers)
    servers = isinstance(engine, VLLMServerEngine | VLLMFleet)
    if isinstance(engine, VLLMEngine) or (servers and engine.beside_trainer):
        yield (
            "data.engine: VLLMFleet, with devices of its own (`devices` or `urls`)",
            setup.with_data(engine=VLLMFleet(urls=["http://elsewhere"])),
        )


def _largest(least: int, most: int, works: Callable[[int], bool]) -> int | None:
    """The largest number that works, if all smaller ones do; None if not even the least does."""
    if least > most or not works(least):
        return None
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if works(middle) else (least, middle - 1)
    return least


def _smallest_power(works: Callable[[int], bool]) -> int | None:
    """The smallest power of two that works."""
    count = 1
    while count <= MOST_DEVICES:
        if works(count):
            return count
        count *= 2
    return None
