"""Reckons memory and time of an iteration of 3B, 7B and 32B models on 1 to 64 GPUs, as Markdown.

    python scripts/scaling_table.py

Nothing is measured. Memory is what ``vagentrl check`` counts (vagentrl/cli/memory.py); time is
counted FLOPs and bytes divided by the speeds below, which are assumptions. docs/scaling.md explains
both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vagentrl.advantages import GroupRelative
from vagentrl.cli.memory import GIB, Shards, kv_bytes_per_token, totals, vllm_bytes
from vagentrl.cli.memory import memory_plan as plan
from vagentrl.cli.verdict import USABLE, Setup
from vagentrl.datamodule import RolloutDataModule
from vagentrl.engines import VLLMEngine
from vagentrl.modules.agent import AgentModule

DEVICE_GIB = 80
GPUS = (1, 8, 16, 64)
GPUS_IN_A_NODE = 8
HALF, FULL = 2, 4
"""Bytes of a number in bfloat16 and in float32."""

QWEN: dict[str, dict[str, Any]] = {
    "3B": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
           "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936,
           "tie_word_embeddings": True},
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
           "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
           "tie_word_embeddings": False},
    "32B": {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
            "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064,
            "tie_word_embeddings": False},
}  # fmt: skip
"""Shapes of Qwen2.5, as in the ``config.json`` of each."""

STRATEGIES = {"ddp": 0, "deepspeed_stage_2": 2, "fsdp2": 3}
"""The stage of each strategy, as `Shards` counts it."""

LEARNING = ("score", "learn", "exchange")
"""Stages that need no engine on the trainer's GPUs."""


@dataclass(frozen=True)
class Work:
    """An iteration: what is played and learned from.

    Attributes:
        episodes: Episodes, a row each, and all in one minibatch.
        length: Tokens of a row.
        turns: Replies in an episode, which are sampled one after the other.
        reply: Tokens of a reply.
    """

    episodes: int = 512
    length: int = 8192
    turns: int = 10
    reply: int = 256


@dataclass(frozen=True)
class Speeds:
    """What a GPU and its links are assumed to do.

    Attributes:
        tflops: 10¹² operations a second in bfloat16, as sold.
        learn: Share of them that learning and scoring reach (MFU).
        prefill: Share of them that vLLM reaches while it reads prompts.
        memory_gb_s: 10⁹ bytes a second that sampling reads from GPU memory.
        link_gb_s: 10⁹ bytes a second between GPUs of a node, for each GPU.
        network_gb_s: The same between nodes.
        to_vllm_gb_s: 10⁹ bytes a second at which an engine takes new weights.
    """

    tflops: float = 989
    learn: float = 0.35
    prefill: float = 0.5
    memory_gb_s: float = 2000
    link_gb_s: float = 300
    network_gb_s: float = 40
    to_vllm_gb_s: float = 10


@dataclass(frozen=True)
class Seconds:
    """The stages of an iteration."""

    sample: float
    score: float
    learn: float
    exchange: float
    weights: float

    def total(self) -> float:
        return self.sample + self.score + self.learn + self.exchange + self.weights


def setup_of(shape: dict[str, Any], strategy: str, gpus: int, work: Work) -> Setup:
    """A run of that shape, its models on the meta device."""
    fsdp = strategy == "fsdp2"
    config = {"model_type": "qwen2", "max_position_embeddings": 32768, **shape}
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        agent = AgentModule(
            policy=folder,
            advantage=GroupRelative(),
            dtype="float32" if fsdp else "bfloat16",
            gradient_checkpointing=True,
        )
        agent.build(banned_ids=frozenset(), meta=True)
    data = RolloutDataModule(
        env=_no_environment,
        engine=VLLMEngine(gpu_memory_utilization=0.5),
        groups=work.episodes // 8,
        group_size=8,
        micro_batch_tokens=work.length,
        context_length=work.length,
    )
    data.engine.dtype = torch.bfloat16
    shards = Shards(gpus, STRATEGIES[strategy], fsdp=fsdp)
    return Setup(agent, data, shards, DEVICE_GIB * GIB)


def _no_environment() -> Any:
    raise NotImplementedError("nothing is played")


def forward_flops(parameters: int, config: Any, tokens: int, length: int) -> float:
    """2 for each weight and token, and attention to half a row, on average, in every layer."""
    attention = 4 * config.hidden_size * (length / 2) * config.num_hidden_layers
    return tokens * (2 * parameters + attention)


def seconds(setup: Setup, work: Work, speeds: Speeds) -> Seconds:
    """The time of each stage, if nothing overlaps and no GPU waits for a longer episode."""
    policy, shards = setup.agent.actor.policy, setup.shards
    config = policy.config.get_text_config()
    count, gpus = sum(p.numel() for p in policy.parameters()), shards.devices
    forward = forward_flops(count, config, work.episodes * work.length, work.length) / gpus
    learning = speeds.tflops * 1e12 * speeds.learn
    return Seconds(
        sample=_sampling(setup, work, speeds) + forward / (speeds.tflops * 1e12 * speeds.prefill),
        score=forward / learning,
        learn=4 * forward / learning,  # forward, again for checkpointing, and twice that backward
        exchange=_exchange(count, shards, work, speeds),
        weights=vllm_bytes(policy, setup.data.engine) / (speeds.to_vllm_gb_s * 1e9),  # pyright: ignore
    )


def _sampling(setup: Setup, work: Work, speeds: Speeds) -> float:
    """Every step reads all weights once, and keys and values of half a row for each episode.

    As many episodes are sampled at once as the cache has room for; the others wait.
    """
    policy, engine = setup.agent.actor.policy, setup.data.engine
    size = vllm_bytes(policy, engine)  # pyright: ignore
    cache = kv_bytes_per_token(policy.config.get_text_config(), HALF) * work.length
    room = int(max(0.5 * setup.device_bytes - size, cache) // cache)
    mine = -(-work.episodes // setup.shards.devices)
    waves = -(-mine // min(mine, room, 256))
    steps = work.turns * work.reply
    read = waves * steps * size + mine * steps * cache / 2
    return read / (speeds.memory_gb_s * 1e9)


def _exchange(count: int, shards: Shards, work: Work, speeds: Speeds) -> float:
    """Each GPU sends nearly all gradients or weights once for each time that they are needed."""
    gpus = shards.devices
    link = speeds.link_gb_s if gpus <= GPUS_IN_A_NODE else speeds.network_gb_s
    passes = -(-work.episodes // gpus)
    if shards.fsdp:  # in every pass weights for scoring, forward and backward, and the gradients
        sent = passes * (3 * FULL + FULL)
    elif shards.stage == 2:  # in every pass the gradients, and once the new weights
        sent = (passes + 1) * HALF
    else:  # once the gradients, which ranks first sum and then share
        sent = 2 * HALF
    return sent * count * (gpus - 1) / gpus / (link * 1e9)


def rows(work: Work, speeds: Speeds) -> Iterator[str]:
    """The lines of the table."""
    yield (
        "| model | GPUs | strategy | GiB learning | GiB sampling | fits | sample s | score s | "
        "learn s | exchange s | new weights s | iteration s |"
    )
    yield "|---|--:|---|--:|--:|---|--:|--:|--:|--:|--:|--:|"
    for name, shape in QWEN.items():
        for strategy in STRATEGIES:
            alone = setup_of(shape, strategy, 1, work)
            for gpus in GPUS:
                if gpus == 1 and strategy != "ddp":
                    continue  # one device has nobody to share with
                setup = replace(alone, shards=replace(alone.shards, devices=gpus))
                held = totals(plan(setup.agent, setup.data, setup.shards, setup.device_bytes))
                memory = [f"{held[phase] / GIB:.0f}" for phase in ("learning", "sampling")]
                fits = _verdict(setup, held["learning"])
                spent = seconds(setup, work, speeds)
                times = asdict(spent) | {"iteration": spent.total()}
                shown = [
                    f"{time:,.0f}" if fits == "yes" or (fits != "no" and stage in LEARNING) else ""
                    for stage, time in times.items()
                ]
                yield f"| {' | '.join([name, str(gpus), f'`{strategy}`', *memory, fits, *shown])} |"


def _verdict(setup: Setup, learning: float) -> str:
    if setup.fits():
        return "yes"
    return "learning" if learning <= USABLE * setup.device_bytes else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for settings in (Work(), Speeds()):
        for name, value in asdict(settings).items():
            parser.add_argument(f"--{name}", type=type(value), default=value)
    given = vars(parser.parse_args())
    work = Work(**{name: given[name] for name in asdict(Work())})
    speeds = Speeds(**{name: float(given[name]) for name in asdict(Speeds())})
    for row in rows(work, speeds):
        print(row)


if __name__ == "__main__":
    main()
