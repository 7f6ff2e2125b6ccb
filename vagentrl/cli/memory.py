"""How much memory a run will take, reckoned from the shapes of its models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from vagentrl.engines import VLLMEngine, VLLMFleet, VLLMServerEngine
from vagentrl.engines.kv_cache import GROWTH
from vagentrl.engines.vllm.settings import engine_dtype
from vagentrl.models.forward import LOGITS_PER_CHUNK
from vagentrl.models.load import context_length

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

    from vagentrl.datamodule import RolloutDataModule
    from vagentrl.modules.agent import AgentModule

GIB = 2**30


@dataclass(frozen=True)
class Shards:
    """What the devices of a run share instead of holding it all: ZeRO's stages, and FSDP.

    Attributes:
        devices: How many there are.
        stage: 1 shares the optimizer's moments, 2 the gradients too, 3 also the weights.
        offloads: Whether the optimizer's states are in main memory.
        fsdp: Whether it is FSDP that shares, which keeps no second weights in float32.
    """

    devices: int = 1
    stage: int = 0
    offloads: bool = False
    fsdp: bool = False

    @classmethod
    def of(cls, strategy: Any, devices: Any, nodes: int) -> Shards:
        """As a trainer's settings say; devices that they leave open count as one.

        Args:
            strategy: ``trainer.strategy``: a name, or settings with a ``class_path``.
            devices: ``trainer.devices``.
            nodes: ``trainer.num_nodes``.
        """
        try:
            count = len(devices) if isinstance(devices, list) else max(int(devices), 1)
        except ValueError:
            count = 1
        settings = {} if isinstance(strategy, str) else dict(strategy.get("init_args") or {})
        name = strategy if isinstance(strategy, str) else strategy["class_path"]
        if "deepspeed" in name.lower():
            numbers = [int(part) for part in name.split("_") if part.isdigit()]
            stage = settings.get("stage") or (numbers or [2])[0]
            config = settings.get("config")
            chosen = config.get("zero_optimization", {}) if isinstance(config, dict) else settings
            offloads = name.lower().endswith("_offload") or bool(chosen.get("offload_optimizer"))
            return cls(count * nodes, stage, offloads)
        sharded = "fsdp" in name.lower() or "modelparallel" in name.lower()
        return cls(count * nodes, 3 if sharded else 0, fsdp=sharded)

    def share(self, stage: int) -> float:
        """What one device holds of what is shared from this stage on."""
        return 1 / self.devices if self.stage >= stage else 1.0


@dataclass(frozen=True)
class Item:
    """Something that takes memory on each device.

    Attributes:
        name: What it is.
        size: Bytes.
        how: How that was reckoned.
        when: The phase of an iteration in which it is there: ``learn``, ``sample`` or ``always``.
        on_host: Whether it is in main memory, for each device.
    """

    name: str
    size: float
    how: str
    when: Literal["learn", "sample", "always"] = "always"
    on_host: bool = False


def table(items: Sequence[Item]) -> str:
    """The items, and what they come to in each phase."""
    held = [item for item in items if not item.on_host]
    offloaded = [item for item in items if item.on_host]
    lines = [f"{'on each device':<24}{'GiB':>9}"]
    lines += [f"{item.name:<24}{item.size / GIB:>9.2f}  {item.how}" for item in held]
    for phase, total in totals(items).items():
        lines.append(f"while {phase:<18}{total / GIB:>9.2f}")
    if offloaded:
        lines.append("in main memory, for each device")
        lines += [f"{item.name:<24}{item.size / GIB:>9.2f}  {item.how}" for item in offloaded]
    return "\n".join(lines)


def totals(items: Iterable[Item]) -> dict[str, float]:
    """The bytes on a device of all items that are there while learning, and while sampling."""
    items = [item for item in items if not item.on_host]
    return {
        name: sum(item.size for item in items if item.when in (phase, "always"))
        for phase, name in (("learn", "learning"), ("sample", "sampling"))
    }


def memory_plan(
    agent: AgentModule,
    data: RolloutDataModule,
    shards: Shards,
    device_bytes: float | None = None,
) -> Iterator[Item]:
    """What each device will hold at most. Not counted: a vision tower's activations, and what the
    libraries themselves take.

    Args:
        agent: The module, its models built (the meta device will do).
        data: The datamodule.
        shards: What the devices share.
        device_bytes: Memory of a device, of which vLLM takes a share; None if it is not known.
    """
    policy = agent.actor.policy
    config = policy.config.get_text_config()
    can_read = context_length(policy.config)
    length = min(data.wanted_context or can_read, can_read)
    for name, module in agent.named_children():
        yield _weights(name, module, shards)
        if any(p.requires_grad for p in module.parameters()):
            yield from _training(name, module, shards)
    bytes_each = policy.dtype.itemsize
    tokens, what = _pass(data, length)
    held = activations(config, agent.gradient_checkpointing) * tokens * bytes_each
    checkpointed = ", checkpointed" if agent.gradient_checkpointing else ""
    yield Item("activations", held, f"of {what}{checkpointed}", "learn")
    logits = min(LOGITS_PER_CHUNK, tokens * config.vocab_size) * 4
    yield Item("logits", 3 * logits, "a chunk in float32, its log-softmax and a gradient", "learn")
    cache = kv_bytes_per_token(config, bytes_each) * length
    if isinstance(data.engine, VLLMEngine):
        yield from _vllm(policy, data.engine, cache, device_bytes)
    elif isinstance(data.engine, VLLMServerEngine | VLLMFleet):
        yield from _servers(policy, data.engine)
    else:
        if data.engine.samples_from_copy:
            size = sum(p.nbytes for p in policy.parameters())
            yield Item("the engine's weights", size, "a copy of the actor's")
        share = -(-data.groups * data.group_size // shards.devices)
        episodes = min(share, data.max_workers)
        how = f"of {episodes} episodes at once, in {type(data.engine).__name__}, if each fills it"
        # The cache grows in steps, and a layer that grows is there twice.
        size = cache * episodes * GROWTH * (1 + 1 / config.num_hidden_layers)
        yield Item("keys and values", size, how, "sample")


def activations(config: PretrainedConfig, checkpointed: bool) -> float:
    """Numbers that the language model keeps for the backward pass of one token.

    13 hidden sizes and 4 widths of the MLP a layer, and 4 hidden sizes after the last: an upper
    bound to what transformers' decoders were seen to save with fused attention. Checkpointed, a
    layer keeps its input (2 hidden sizes with the rest), and one layer at a time the whole.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    layer = 13 * hidden + 4 * config.intermediate_size
    kept = 2 * hidden * layers + layer if checkpointed else layer * layers
    return kept + 4 * hidden


def kv_bytes_per_token(config: PretrainedConfig, bytes_each: int) -> int:
    """Keys and values of one token in all layers."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * width * bytes_each


def _weights(name: str, module: nn.Module, shards: Shards) -> Item:
    count = sum(p.numel() for p in module.parameters())
    size = sum(p.nbytes for p in module.parameters())
    return Item(name, size * shards.share(3), f"{count:,} parameters")


def _pass(data: RolloutDataModule, length: int) -> tuple[int, str]:
    """The most tokens in a forward and backward pass, and how that was reckoned."""
    if data.micro_batch_tokens is None:
        rows = data.micro_batch_size or 1
        return rows * length, f"{rows} rows of up to {length:,} tokens"
    if data.micro_batch_tokens < length:
        return length, f"one row of up to {length:,} tokens, more than micro_batch_tokens"
    return data.micro_batch_tokens, f"up to {data.micro_batch_tokens:,} tokens"


def _training(name: str, module: nn.Module, shards: Shards) -> Iterator[Item]:
    learning = [p for p in module.parameters() if p.requires_grad]
    count = sum(p.numel() for p in learning)
    gradients = sum(p.nbytes for p in learning) * shards.share(2)
    name_of_stage = "FSDP" if shards.fsdp else f"ZeRO-{shards.stage}"
    shared = f", {name_of_stage} over {shards.devices} devices" if shards.stage else ""
    if shards.offloads:
        # DeepSpeed keeps weights, their gradients and both moments there, all in float32
        yield Item(f"{name}, to learn", gradients, f"gradients of {count:,}{shared}")
        offloaded = 16 * count * shards.share(1)
        how = f"float32 weights, gradients and Adam's moments of {count:,}{shared}"
        yield Item(f"{name}, offloaded", offloaded, how, on_host=True)
        return
    # DeepSpeed keeps weights in float32 beside those in half precision; AdamW does not
    zero = shards.stage and not shards.fsdp
    master = 4 * count if zero and learning[0].dtype != torch.float32 else 0
    each = 4 if zero else learning[0].element_size()
    moments = (2 * each * count + master) * shards.share(1)
    how = f"gradients and Adam's moments{' and float32 weights' * bool(master)} of {count:,}"
    yield Item(f"{name}, to learn", gradients + moments, how + shared)


def _vllm(
    policy: PreTrainedModel, engine: VLLMEngine, cache: int, device_bytes: float | None
) -> Iterator[Item]:
    ways = engine.options["tensor_parallel_size"]
    size = vllm_bytes(policy, engine) / ways
    when = "sample" if engine.sleep else "always"
    yield Item("vLLM's weights", size, f"over {ways} devices", when)
    name, needed = "vLLM's keys and values", cache / ways
    if engine.kv_cache_gb is not None:
        yield Item(name, engine.kv_cache_gb * GIB, "kv_cache_gb", when)
        return
    share = engine.options["gpu_memory_utilization"]
    left = 0.0 if device_bytes is None else share * device_bytes - size
    how = f"what is left of {share:.0%} of the device"
    if left >= needed:
        how += f": {left / needed:,.0f} episodes that fill the context"
    else:  # vLLM does not start with less
        how += ", and at least one episode that fills the context"
    yield Item(name, max(left, needed), how, when)


def vllm_bytes(policy: PreTrainedModel, engine: VLLMEngine | VLLMServerEngine | VLLMFleet) -> int:
    """The bytes of the policy's weights in the type in which vLLM computes."""
    count = sum(p.numel() for p in policy.parameters())
    return count * engine_dtype(policy, engine.options, engine.dtype).itemsize


def _servers(policy: PreTrainedModel, engine: VLLMServerEngine | VLLMFleet) -> Iterator[Item]:
    if not engine.beside_trainer:
        yield Item("vLLM's server", 0.0, "on devices of its own")
        return
    count = engine.servers or 1 if isinstance(engine, VLLMFleet) else 1
    size = count * vllm_bytes(policy, engine)
    where = "in a server" if count == 1 else f"in {count} servers"
    yield Item("vLLM's weights", size, f"{where} beside the trainer: see data.engine.devices")
    kept = count * (engine.kv_cache_gb or 0.0) * GIB
    how = "kv_cache_gb" if kept else "what options.gpu_memory_utilization leaves of the device"
    yield Item("vLLM's keys and values", kept, how)
