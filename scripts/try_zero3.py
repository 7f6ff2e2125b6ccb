"""Tries DeepSpeed's ZeRO-3 on two CPU processes, and prints what happens in each case.

    python -m scripts.try_zero3
    python -m scripts.try_zero3 "rank 1 has no image" --limit 120

A tiny model that ships with vagentrl learns for two steps of two micro-batches, whose lengths
differ between the ranks. One process does the same with the mean of both ranks' losses, and the
learned weights are compared; 2e-5 is a fiftieth of a step. ZeRO-1 and ZeRO-2 are tried where they
differ from one process too. Of a case that has not ended after `--limit` seconds, the innermost
function outside of DeepSpeed and torch is named.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import re
import socket
import tempfile
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"  # before deepspeed is imported
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # DeepSpeed would load the compiler, and not use it

import deepspeed  # pyright: ignore[reportMissingImports]
import torch
from torch import Tensor, nn
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from tests.toy import one_turn_rows
from vagentrl.models import forward
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA
from vagentrl.models.replica import Replica
from vagentrl.models.sharded import full_state
from vagentrl.modules.actor import ActorModule
from vagentrl.modules.critic import CriticModule
from vagentrl.modules.reference import ReferenceModule
from vagentrl.modules.unused_weights import touch, vision_in_every_pass
from vagentrl.types import RolloutBatch, VisionInputs

TEXT, IMAGES = "tiny-sokoban-text", "tiny-sokoban-vlm"
IMAGE_TOKEN = 5
STEPS, PASSES = 2, 2  # passes in each step
LENGTHS = (([9, 14], [12], [21], [8, 8, 10]), ([11], [17, 6], [7, 7], [13]))
"""Tokens in the rows of each micro-batch of rank 0, and of rank 1."""
TOLERANCE = 2e-5
LOST = "loses the other rank"


@dataclass(frozen=True)
class Case:
    """What is tried.

    Attributes:
        model: The policy.
        images: Whether the rows of each rank show images.
        critic: ``own``, ``shared`` or None.
        reference: Whether there is a frozen reference.
        settings: More settings of `load_model`.
        loaded: ``whole`` loads the models in every rank before DeepSpeed divides them; ``init``
            loads them under `deepspeed.zero.Init`, ``hf`` with an `HfDeepSpeedConfig` besides.
        leaf: The name of a module that DeepSpeed shall gather as one.
        black: Whether a pass without images shows the vision tower a black picture.
        tokens_per_head: Tokens for which the head computes logits at once; None: all of them.
        zero: Settings of ``zero_optimization``.
    """

    model: str = TEXT
    images: tuple[bool, bool] = (False, False)
    critic: str | None = None
    reference: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    loaded: str = "whole"
    leaf: str | None = None
    black: bool = False
    tokens_per_head: int | None = None
    zero: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": PASSES,
            "gradient_clipping": 0.0,  # DeepSpeed's default is 1
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 3} | self.zero,
        }

    def batches(self, rank: int) -> list[RolloutBatch]:
        return [
            rows(lengths, 10 * rank + number, self.images[rank])
            for number, lengths in enumerate(LENGTHS[rank])
        ]


ONE_WITHOUT: dict[str, Any] = {"model": IMAGES, "images": (True, False)}
BOTH: dict[str, Any] = {"model": IMAGES, "images": (True, True)}
SMALL_BUCKETS = {"reduce_bucket_size": 100_000}
CASES: dict[str, Case] = {
    "text": Case(),
    "text, reference, own critic, checkpointed activations": Case(
        reference=True, critic="own", settings={"gradient_checkpointing": True}
    ),
    "text, shared critic": Case(critic="shared"),
    "text, the head computes 8 tokens at a time": Case(tokens_per_head=8),
    "text, loaded under zero.Init": Case(loaded="init"),
    "text, loaded under zero.Init and HfDeepSpeedConfig": Case(loaded="hf"),
    "LoRA": Case(settings={"lora": LoRA(4)}),
    "LoRA, loaded under zero.Init and HfDeepSpeedConfig": Case(
        loaded="hf", settings={"lora": LoRA(4)}
    ),
    "images on both ranks, own critic": Case(**BOTH, critic="own"),
    "images on both ranks, loaded under zero.Init and HfDeepSpeedConfig": Case(**BOTH, loaded="hf"),
    "images on both ranks, a frozen tower that remembers them": Case(
        **BOTH, settings={"freeze_vision": True}
    ),
    "rank 1 has no image": Case(**ONE_WITHOUT),
    "rank 1 has no image, nothing is fetched ahead": Case(
        **ONE_WITHOUT, zero={"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
    ),
    "rank 1 has no image, the tower is a leaf": Case(**ONE_WITHOUT, leaf="visual"),
    "rank 1 has no image, the backbone is a leaf": Case(**ONE_WITHOUT, leaf="policy.model"),
    "rank 1 has no image but a black one": Case(**ONE_WITHOUT, black=True),
    "rank 1 has no image but a black one, the tower is a leaf": Case(
        **ONE_WITHOUT, black=True, leaf="visual"
    ),
    "ZeRO-1, rank 1 has no image": Case(**ONE_WITHOUT, zero={"stage": 1, "overlap_comm": True}),
    "ZeRO-2, rank 1 has no image": Case(**ONE_WITHOUT, zero={"stage": 2}),
    "ZeRO-2, rank 1 has no image, small buckets": Case(
        **ONE_WITHOUT, zero={"stage": 2} | SMALL_BUCKETS
    ),
    "ZeRO-1, rank 1 has no image but a black one": Case(
        **ONE_WITHOUT, black=True, zero={"stage": 1, "overlap_comm": True}
    ),
    "ZeRO-2, rank 1 has no image but a black one": Case(
        **ONE_WITHOUT, black=True, zero={"stage": 2}
    ),
    "ZeRO-2, rank 1 has no image but a black one, small buckets": Case(
        **ONE_WITHOUT, black=True, zero={"stage": 2} | SMALL_BUCKETS
    ),
}


class Learner(nn.Module):
    """An actor, and what learns or is read beside it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        policy = self._load(case)
        backbone: Any = self._load(case).base_model if case.critic == "own" else None
        self.actor = ActorModule(policy, frozenset())
        self.critic = CriticModule(policy, backbone) if case.critic else None
        self.reference = ReferenceModule(self._load(case), frozenset()) if case.reference else None
        backbones: list[Any] = [policy.base_model, *([backbone] if backbone is not None else [])]
        self._shown_black = backbones if case.black else []

    def _load(self, case: Case) -> Any:
        torch.manual_seed(0)
        return load_model(case.model, **case.settings)

    def forward(self, rollout: RolloutBatch) -> Tensor:
        with vision_in_every_pass(self._shown_black):
            states = self.actor.states(rollout)
        logprobs, entropy = self.actor.logprobs(states, rollout, with_entropy=True)
        assert entropy is not None
        loss = -(logprobs.mean() + 0.01 * entropy.mean())
        if self.reference is not None:
            loss = loss + (logprobs - self.reference(rollout)).square().mean()
        if self.critic is not None:
            with vision_in_every_pass(self._shown_black):
                loss = loss + (self.critic(rollout, states) - 1).square().mean()
        return loss


def rows(lengths: list[int], seed: int, images: bool) -> RolloutBatch:
    """Random rows, each with an image of two tokens if there are any."""
    width, random = max(lengths) + 1, torch.Generator().manual_seed(seed)
    ids = torch.randint(20, 200, (len(lengths), width), generator=random)
    if images:
        ids[:, 2:4] = IMAGE_TOKEN
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    sampled = real & (torch.arange(width) > 4)
    if not images:
        return one_turn_rows(ids.masked_fill(~real, 0), real, sampled)
    patches = torch.randn(8 * len(lengths), 1176, generator=random)
    grids = torch.tensor([[1, 2, 4]] * len(lengths))
    vision = VisionInputs(patches, grids, tuple((n,) for n in range(len(lengths))))
    return one_turn_rows(ids.masked_fill(~real, 0), real, sampled, vision)


def optimizer_of(learner: Learner) -> torch.optim.Optimizer:
    learning = [p for p in learner.parameters() if p.requires_grad]
    return torch.optim.AdamW(learning, lr=1e-3, eps=1e-5)


def learn_alone(case: Case) -> dict[str, Tensor]:
    """The weights that one process learns."""
    learner = Learner(case)
    optimizer, batches = optimizer_of(learner), [case.batches(rank) for rank in (0, 1)]
    for step in range(STEPS):
        optimizer.zero_grad()
        for mine in batches:
            for batch in mine[step * PASSES : (step + 1) * PASSES]:
                (learner(batch) / (2 * PASSES)).backward()
        optimizer.step()
    return dict(learner.state_dict())


def learn_as_a_rank(case: Case, rank: int) -> str:
    """How the loaded and the learned weights differ from those of one process."""
    wanted_first, wanted = Learner(case).state_dict(), learn_alone(case)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
    deepspeed.init_distributed("gloo", verbose=False)
    known = HfDeepSpeedConfig(case.config) if case.loaded == "hf" else None
    divided = case.loaded != "whole"
    with deepspeed.zero.Init(config_dict_or_path=case.config) if divided else nullcontext():
        learner = Learner(case)
    del known  # transformers looks for it while it loads
    loaded = difference(dict(full_state(learner)), wanted_first)
    if case.leaf is not None:
        leaves = [name for name, _ in learner.named_modules() if name.endswith(case.leaf)]
        deepspeed.utils.set_z3_leaf_modules_by_name(learner, leaves)
    if case.tokens_per_head is not None:
        head = learner.actor.policy.get_output_embeddings()
        forward.LOGITS_PER_CHUNK = case.tokens_per_head * head.out_features  # pyright: ignore
    config, optimizer = case.config, optimizer_of(learner)
    engine, *_ = deepspeed.initialize(model=learner, optimizer=optimizer, config=config)
    batches = case.batches(rank)
    with torch.no_grad():  # scoring reads rows too
        learner(batches[0])
    for batch in batches:
        loss = engine(batch)
        if config["zero_optimization"]["stage"] < 3:
            loss = touch(loss, [p for p in learner.parameters() if p.requires_grad])
        engine.backward(loss)
        engine.step()
    found = {name: weight.detach().clone() for name, weight in full_state(learner)}
    copied = Replica.of(learner.actor.policy).build().state_dict()
    for name, weight in copied.items():
        assert torch.equal(weight, found[f"actor.policy.{name}"]), f"an engine got other {name}"
    return f"loaded {loaded}, learned {difference(found, wanted)}"


def difference(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> str:
    away = {name: float((found[name] - weight).abs().max()) for name, weight in wanted.items()}
    wrong = sum(not value <= TOLERANCE for value in away.values())
    return f"{max(away.values()):.1e} off" + (f" ({wrong} of {len(away)} WRONG)" if wrong else "")


def run_rank(case: Case, rank: int, port: int, folder: Path, limit: float) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    log = (folder / f"{rank}.log").open("w")
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    faulthandler.dump_traceback_later(limit, exit=True, file=(folder / f"{rank}.stack").open("w"))
    try:
        said = learn_as_a_rank(case, rank)
    except Exception as error:  # whatever DeepSpeed and gloo raise is what is looked for
        traceback.print_exc(file=log)
        said = str(error).strip().splitlines()[0]
        said = LOST if "by peer" in said else f"ends with {type(error).__name__}: {said}"
    (folder / f"{rank}.said").write_text(said)
    os._exit(0)  # gloo's threads may wait for the other rank


def try_on_two_ranks(case: Case, limit: float) -> list[str]:
    """What came of each rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")  # imports take longer than a case
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            context.Process(target=run_rank, args=(case, rank, port, folder, limit))
            for rank in (0, 1)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(limit + 30)
            process.kill()
        return [outcome(folder, rank) for rank in (0, 1)]


def outcome(folder: Path, rank: int) -> str:
    if (said := folder / f"{rank}.said").exists():
        return said.read_text()
    stack = (folder / f"{rank}.stack").read_text()
    if stack:
        stack = stack.split("Thread 0x")[-1]  # the main thread comes last
        frames = re.findall(r'File "([^"]+)", line (\d+) in (\w+)', stack)
        own = [f for f in frames if "/vagentrl/" in f[0] or "/transformers/" in f[0]]
        path, line, function = (own or frames)[0]
        return f"has not ended; it is in {function} ({Path(path).name}:{line})"
    ended = (folder / f"{rank}.log").read_text().strip().splitlines()[-1]
    return f"is aborted: {ended.partition('] ')[2] or ended}"  # after gloo's file and line


def main() -> None:
    parser = argparse.ArgumentParser(description="Try ZeRO-3 on two CPU processes.")
    parser.add_argument("cases", nargs="*", help="the cases to try, by the start of their names")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each case")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if not settings.cases or name.startswith(tuple(settings.cases)):
            first, second = try_on_two_ranks(case, settings.limit)
            said = first if first == second else f"\n    rank 0 {first}\n    rank 1 {second}"
            print(f"{name}: {said}", flush=True)


if __name__ == "__main__":
    main()
