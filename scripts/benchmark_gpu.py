"""Measures the iterations of a run on one GPU: seconds, speed and memory of each stage.

    python -m scripts.benchmark_gpu --shape vl-3b -- --config configs/qwen/sokoban_vlm_3b.yaml \\
        --trainer.devices 1 --trainer.strategy auto --trainer.max_epochs 3

Trains a model of the given shape with random weights; what follows ``--`` goes to ``vagentrl fit``.
The table has the median over all iterations but the first. *tokens* are real ones, without padding.
*TFLOP/s* counts 2 operations for each parameter and token that is scored and 6 for one that is
learned, without attention and without what is computed twice; it is left out for sampling, which is
bound by memory. *GiB* is the most that the whole device held, other programs and vLLM
included (polled every 10 ms); *torch* what this process's tensors took of it; *reckoned* is what
``vagentrl check`` says, which leaves out CUDA's own memory. Without a GPU there is no memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from lightning import LightningModule, Trainer

from vagentrl.cli.main import main as vagentrl
from vagentrl.cli.memory import GIB, Shards, memory_plan, totals
from vagentrl.datamodule import RolloutDataModule
from vagentrl.models.tiny import TinyModel, build_image_processor, build_model, build_tokenizer
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.types import RolloutBatch, Scores

VOCABULARY = 151_936
"""Embeddings of a Qwen2.5 model; the tokenizer knows fewer."""
LARGE = TinyModel(
    images=False,
    hidden_size=1536,
    layers=28,
    heads=12,
    kv_heads=2,
    intermediate_size=8960,
    context_length=32_768,
    vision_hidden_size=1280,
    vision_layers=32,
    vision_heads=16,
)
SHAPES = {
    "tiny": TinyModel(images=True),
    "1.5b": LARGE,
    "vl-3b": replace(
        LARGE, images=True, hidden_size=2048, layers=36, heads=16, intermediate_size=11_008
    ),
}
"""Those of Qwen2.5-1.5B, and of the language model of Qwen2.5-VL-3B with a tower as wide."""


@dataclass
class Stage:
    """What a stage of an iteration took."""

    name: str
    seconds: float
    tokens: int = 0
    device_bytes: int = 0
    torch_bytes: int = 0


@dataclass
class Seen:
    """What the run below has measured; the callback is made by the command line."""

    stages: list[Stage] = field(default_factory=list)
    parameters: int = 0
    reckoned: dict[str, float] = field(default_factory=dict)


SEEN = Seen()


class Stages(AgentCallback):
    """Notes when the stages of an iteration end, and the most memory that each took."""

    def __init__(self) -> None:
        self._on_gpu = torch.cuda.is_available()
        self._most, self._over = 0, threading.Event()
        self._since, self._tokens = time.perf_counter(), 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent: AgentModule = pl_module  # pyright: ignore
        device_bytes = torch.cuda.mem_get_info()[1] if self._on_gpu else None
        data: RolloutDataModule = trainer.datamodule  # pyright: ignore
        plan = memory_plan(agent, data, Shards(), device_bytes)
        SEEN.reckoned = totals(plan)
        SEEN.parameters = sum(p.numel() for p in agent.actor.parameters())
        if self._on_gpu:
            threading.Thread(target=self._poll, daemon=True).start()

    def on_report(self, agent: AgentModule, report: dict[str, float]) -> None:
        self._end("sample", int(report["rollout/sampled_tokens"]))

    def on_scores(self, agent: AgentModule, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        self._tokens = int(rollout.attention_mask.sum())
        self._end("score", self._tokens)
        return rollout

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end("learn", self._tokens * rollouts_of(trainer).passes)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._over.set()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._over.set()

    def _poll(self) -> None:
        while not self._over.wait(0.01):
            free, total = torch.cuda.mem_get_info()
            self._most = max(self._most, total - free)

    def _end(self, name: str, tokens: int) -> None:
        stage = Stage(name, 0.0, tokens)
        if self._on_gpu:
            torch.cuda.synchronize()
            stage.device_bytes, self._most = self._most, 0
            stage.torch_bytes = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        now = time.perf_counter()
        stage.seconds, self._since = now - self._since, now
        SEEN.stages.append(stage)


def make_model(shape: TinyModel, folder: Path) -> None:
    """Write a model with random weights in bfloat16."""
    tokenizer = build_tokenizer(shape, ["system\n", "user\n", "assistant\n"])
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = build_model(shape, tokenizer)
        if shape is not SHAPES["tiny"]:
            model.resize_token_embeddings(VOCABULARY, mean_resizing=False)
    torch.set_default_dtype(torch.float32)
    parts = (tokenizer, model, *([build_image_processor(shape)] if shape.images else []))
    for part in parts:
        part.save_pretrained(folder)


def table() -> str:
    """The stages' medians over all iterations but the first."""
    lines = [f"{'':<8}{'s':>8}{'tokens/s':>10}{'TFLOP/s':>9}{'GiB':>7}{'torch':>7}{'reckoned':>10}"]
    for name, operations in (("sample", 0), ("score", 2), ("learn", 6)):
        stages = [stage for stage in SEEN.stages if stage.name == name][1:]
        seconds = statistics.median(stage.seconds for stage in stages)
        speed = statistics.median(stage.tokens / stage.seconds for stage in stages)
        device, tensors = (
            max(getattr(stage, kind) for stage in stages) / GIB
            for kind in ("device_bytes", "torch_bytes")
        )
        phase = "sampling" if name == "sample" else "learning"
        reckoned = SEEN.reckoned[phase] / GIB
        flops = f"{operations * SEEN.parameters * speed / 1e12:.0f}" if operations else ""
        lines.append(
            f"{name:<8}{seconds:>8.1f}{speed:>10,.0f}{flops:>9}{device:>7.1f}{tensors:>7.1f}"
            f"{reckoned:>10.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="vl-3b")
    parser.add_argument("fit", nargs="+", help="after --: what vagentrl fit is given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(SHAPES[given.shape], Path(folder))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        more = ("--model.policy", folder, "--trainer.limit_val_batches", "0")
        vagentrl(["fit", *given.fit, *more, "--trainer.callbacks+=scripts.benchmark_gpu.Stages"])
    print(f"\n{given.shape}: {SEEN.parameters:,} parameters\n{table()}")


if __name__ == "__main__":
    from scripts.benchmark_gpu import main as run  # where the callback's class is imported from

    run()
