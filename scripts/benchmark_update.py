"""Measures the update and the scoring of long episodes of unlike length: speed and peak memory.

    OMP_NUM_THREADS=1 python -m scripts.benchmark_update
    OMP_NUM_THREADS=1 python -m scripts.benchmark_update --model large --turns 10 --groups 2

Runs train with the code of `vagentrl fit` on episodes of 1 to `--turns` turns, which a script
plays: all show one system prompt, and the members of a group one first observation. Each way of
reading the rows is a run of its own, and the ways take turns `--rounds` times. The table has
medians over all iterations but the first of a run. *tokens/s* are tokens of the rows (not
padding, and a shared prefix counts for every row) in a processor second of the busiest rank, so
waiting does not count. *MiB* is how far the resident memory of a process rises above what it was
before the stage, when weights and AdamW's moments are there but no gradients; the largest of the
ranks. ``--ways 0`` also measures a checkout of earlier code, if PYTHONPATH leads there. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from PIL import Image

import vagentrl
from vagentrl import ranks
from vagentrl.advantages import GroupRelative
from vagentrl.engines.base import GenerationRequest
from vagentrl.engines.scripted import ScriptedEngine
from vagentrl.environment import Environment
from vagentrl.formats import NoThink
from vagentrl.models.tiny import TinyModel, save_new_model
from vagentrl.types import Observation, Reply, RolloutBatch, StepResult

MIB = 2**20
LARGE = TinyModel(
    images=False,
    hidden_size=768,
    layers=14,
    heads=12,
    kv_heads=12,
    intermediate_size=2048,
    context_length=4096,
)
"""A text model of 100 million parameters."""
LONG = TinyModel(images=True, context_length=8192)
"""A tiny model whose context has room for 30 pictures of 224 pixels."""


Found = dict[str, list[float]]
"""Numbers of a run's iterations: tokens, the longest row, seconds and MiB of each stage."""


@dataclass(frozen=True)
class Way:
    """How a run reads its rows.

    Attributes:
        tokens: Divide minibatches by `--micro_batch_tokens`, not by `--micro_batch_size`.
        packing: Lay rows end to end.
        checkpointing: Recompute activations.
        strategy: Of two ranks; None for a single process.
    """

    tokens: bool = False
    packing: bool = False
    checkpointing: bool = False
    strategy: str | None = None

    def __str__(self) -> str:
        parts = ["by tokens" if self.tokens else "by rows"]
        parts += ["packed"] * self.packing + ["checkpointing"] * self.checkpointing
        return ", ".join(parts + ([] if self.strategy is None else [f"2 × {self.strategy}"]))


WAYS = [
    *(Way(tokens, packed, less) for less in (False, True) for packed in (False, True)
      for tokens in (False, True)),
    *(Way(tokens, strategy="ddp") for tokens in (False, True)),
    *(Way(True, strategy=strategy) for strategy in ("zero_2", "fsdp2")),
]  # fmt: skip


def digits(generator: random.Random, count: int) -> str:
    """A text of as many tokens."""
    return "".join(generator.choices("0123456789", k=count))


class Numbers(Environment):
    """Shows random digits, for a number of turns that the transition seed decides.

    Args:
        turns: Most turns of an episode.
        prompt: Tokens of the system prompt and of the first observation together.
        shown: Tokens of every other observation.
        side: Pixels of a picture in each observation; 0 for none.
    """

    def __init__(self, turns: int, prompt: int, shown: int, side: int) -> None:
        super().__init__(NoThink())
        self.turns, self.prompt, self.shown, self.side = turns, prompt, shown, side

    def system_prompt(self) -> str:
        return digits(random.Random(0), self.prompt // 2)

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.luck = random.Random(transition_seed)
        self.left = self.luck.randint(1, self.turns)
        return self._observe(random.Random(seed), self.prompt - self.prompt // 2)

    def step(self, reply: Reply) -> StepResult:
        self.left -= 1
        observation = self._observe(self.luck, self.shown)
        return StepResult(observation, self.luck.random(), terminated=self.left == 0)

    def _observe(self, generator: random.Random, count: int) -> Observation:
        text = digits(generator, count)
        if not self.side:
            return Observation(text)
        noise = np.random.default_rng(generator.randrange(2**32))
        pixels = noise.integers(256, size=(self.side, self.side, 3), dtype=np.uint8)
        return Observation(f"<image>{text}", (Image.fromarray(pixels),))


def resident(name: str) -> int:
    """This process's ``VmRSS`` (now) or ``VmHWM`` (at most, since it was reset), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


class Meter(Callback):
    """Measures the stages of every iteration, and tells them when the run ends."""

    def __init__(self, told: Connection) -> None:
        self.told = told
        self.found: dict[str, list[float]] = defaultdict(list)

    def begin(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)  # else freed memory would count as used before
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self._before, self._started = resident("VmRSS"), time.process_time()

    def end(self, stage: str) -> None:
        self.found[f"{stage} s"].append(time.process_time() - self._started)
        self.found[f"{stage} MiB"].append((resident("VmHWM") - self._before) / MIB)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rollout: RolloutBatch = trainer.datamodule.train_dataloader().whole.rollout  # pyright: ignore
        self.found["tokens"].append(float(rollout.attention_mask.sum()))
        self.found["longest"].append(rollout.input_ids.shape[1])
        pl_module.zero_grad()
        self.begin()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end("update")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        everyones = ranks.gather([dict(self.found)])
        if trainer.is_global_zero:
            columns = {name: [rank[name] for rank in everyones] for name in self.found}
            worst = {
                n: [max(of) for of in zip(*ranks_, strict=True)] for n, ranks_ in columns.items()
            }
            self.told.send({name: numbers[1:] for name, numbers in worst.items()})


class MeteredAgent(vagentrl.AgentModule):
    """An agent whose scoring is measured."""

    def __init__(self, meter: Meter, **settings: Any) -> None:
        super().__init__(**settings)
        self.meter = meter

    def assess(self, *arguments: Any, **settings: Any) -> Any:
        self.meter.begin()
        assessed = super().assess(*arguments, **settings)
        self.meter.end("score")
        return assessed


def run(way: Way, settings: argparse.Namespace, rank: int, port: int, told: Connection) -> None:
    """Train in one way; the process is a rank."""
    if way.strategy is not None:
        os.environ |= {
            "LOCAL_RANK": f"{rank}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": f"{port}",
        }
    meter = Meter(told)
    reply = settings.reply

    def line(request: GenerationRequest) -> list[int]:
        return random.Random(request.seed).choices(range(20, 200), k=reply)

    side = settings.side if settings.model == "vlm" else 0
    env = partial(Numbers, settings.turns, settings.prompt, settings.shown, side)
    read = "micro_batch_tokens" if way.tokens else "micro_batch_size"
    data = vagentrl.RolloutDataModule(
        env=env,  # pyright: ignore[reportArgumentType]
        engine=ScriptedEngine(line, encode=lambda text: ()),
        sampling=vagentrl.Sampling(max_tokens=reply),
        groups=settings.groups,
        group_size=settings.group_size,
        minibatch_size=settings.groups * settings.group_size,
        **{read: getattr(settings, read)},
    )
    agent = MeteredAgent(
        meter,
        policy=settings.policy,
        advantage=GroupRelative(),
        score_batch_size=settings.micro_batch_size,
        gradient_checkpointing=way.checkpointing,
        **({"packing": True} if way.packing else {}),  # earlier code does not know it
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=settings.iterations + 1,
            accelerator="cpu",
            callbacks=meter,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            default_root_dir=folder,
            **({} if way.strategy is None else {"devices": 2, "strategy": strategy(way.strategy)}),
        )
        trainer.fit(agent, data)


def strategy(name: str) -> Any:
    """What Lightning's trainer gets for the name of a strategy."""
    if name == "fsdp2":
        from vagentrl.modules.fsdp2 import FSDP2

        return FSDP2()
    if name == "zero_2":
        from tests.cpu_deepspeed import CPUDeepSpeed

        return CPUDeepSpeed(stage=2)
    return name


def measure(way: Way, settings: argparse.Namespace) -> Found:
    """What a run finds whose ranks are processes of their own."""
    fork = multiprocessing.get_context("fork")  # all imports are there already
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found, told = fork.Pipe(duplex=False)
    count = 1 if way.strategy is None else 2
    processes = [
        fork.Process(target=run, args=(way, settings, n, port, told)) for n in range(count)
    ]
    for process in processes:
        process.start()
    told.close()
    result = found.recv()  # EOFError if the ranks die
    for process in processes:
        process.join()
    print(f"{way}: {json.dumps(result)}", file=sys.stderr)
    return result


def report(found: dict[str, list[Found]]) -> None:
    """Print the table: medians, and ratios to the first line."""
    first: list[float] = []
    print("| | update tokens/s | | MiB | | scoring tokens/s | | MiB | |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, runs in found.items():
        each = {name: [number for run in runs for number in run[name]] for name in runs[0]}
        numbers: list[float] = []
        for stage in ("update", "score"):
            speeds = [n / s for n, s in zip(each["tokens"], each[f"{stage} s"], strict=True)]
            numbers += [statistics.median(speeds), statistics.median(each[f"{stage} MiB"])]
        first = first or numbers
        cells = (f"{n:,.0f} | {n / one:.2f}×" for n, one in zip(numbers, first, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")


def save(shape: TinyModel, folder: str) -> str:
    torch.manual_seed(0)
    model = save_new_model(shape, ["system\n", "user\n", "assistant\n"], folder)
    print(f"{model.num_parameters():,} parameters")
    return folder


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["text", "vlm", "large"], default="text")
    parser.add_argument("--ways", help="numbers of the lines, such as 0,1,8; all unless given")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group_size", type=int, default=4)
    parser.add_argument("--turns", type=int, default=50, help="of the longest episodes")
    parser.add_argument("--prompt", type=int, default=300, help="tokens")
    parser.add_argument("--shown", type=int, default=12, help="tokens of an observation")
    parser.add_argument("--reply", type=int, default=8, help="tokens of a reply")
    parser.add_argument("--side", type=int, default=56, help="pixels of a picture of the vlm")
    parser.add_argument("--micro_batch_size", type=int, default=4)
    parser.add_argument("--micro_batch_tokens", type=int, default=2048)
    parser.add_argument("--iterations", type=int, default=3, help="that count, of each run")
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    settings = parse()
    chosen = WAYS if settings.ways is None else [WAYS[int(n)] for n in settings.ways.split(",")]
    torch.set_num_threads(1)
    found: dict[str, list[Found]] = {str(way): [] for way in chosen}
    with tempfile.TemporaryDirectory() as folder:
        settings.policy = "tiny-sokoban-text"
        if settings.model != "text":
            settings.policy = save(LARGE if settings.model == "large" else LONG, folder)
        for _ in range(settings.rounds):
            for way in chosen:
                found[str(way)].append(measure(way, settings))
    some = found[str(chosen[0])][0]
    rows = settings.groups * settings.group_size
    print(
        f"{rows} episodes, {min(some['tokens']):,.0f} to {max(some['tokens']):,.0f} tokens, the "
        f"longest {max(some['longest']):,.0f}",
        end="\n\n",
    )
    report(found)


if __name__ == "__main__":
    main()
