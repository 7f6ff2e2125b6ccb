"""Counts the tokens that models read with and without `model.packing`, and measures the time.

    python scripts/benchmark_packing.py shapes
    python scripts/benchmark_packing.py recipes configs/arithmetic.yaml configs/sokoban_vlm.yaml

`shapes` reads random rows of known shapes with a random model. `recipes` plays the episodes of one
iteration of each recipe, then reads them as scoring and one pass of the update do. Seconds are
those of the process on the CPU, without waiting, the smaller of two measurements. The tables are
Markdown.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3Model

from vagentrl.cli.trainer import VagentCLI
from vagentrl.errors import VagentError
from vagentrl.models.forward import packing_of, states_before
from vagentrl.models.packing import ATTENTION
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.scoring import score, scoring_chunks
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.types import RolloutBatch

HOW = {False: "sdpa", True: ATTENTION}


def seconds(run: Callable[[], object]) -> float:
    """The processor's seconds that a call takes, the smaller of two."""
    taken = []
    for _ in range(2):
        started = time.process_time()
        run()
        taken.append(time.process_time() - started)
    return min(taken)


def tokens_read(model: PreTrainedModel, rollout: RolloutBatch) -> int:
    """Tokens in one pass over the rows, padding included."""
    packing = packing_of(model, rollout)
    return rollout.input_ids[:, :-1].numel() if packing is None else len(packing.cells)


# ----------------------------------------------------------------------------------- known shapes


def shapes() -> dict[str, list[list[int]]]:
    """Rows of random tokens, by a description of their shape."""

    def some(count: int) -> list[int]:
        return torch.randint(7, 700, (count,)).tolist()

    def group(prompt: int, members: int, reply: int) -> list[list[int]]:
        shared = some(prompt)
        return [shared + some(reply) for _ in range(members)]

    system, stripped = some(100), []
    history = list(system)
    for _ in range(8):  # 60 tokens of observation, 60 of a reply that leaves 10 without thoughts
        history += some(60)
        stripped.append(history + some(60))
        history += some(10)
    return {
        "8 rows of 200 to 400, nothing shared": [some(200 + 200 * n // 7) for n in range(8)],
        "8 turns, each shows system prompt (100) and 2 earlier turns": [
            system + some(3 * 70 + 50) for _ in range(8)
        ],
        "8 turns, each shows the whole history, thoughts stripped": stripped,
        "group of 8, prompt 300, replies 120": group(300, 8, 120),
        "group of 8, prompt 600, replies 120": group(600, 8, 120),
        "group of 8, prompt 1,500, replies 100": group(1500, 8, 100),
    }


def batch(rows: list[list[int]]) -> RolloutBatch:
    width = max(map(len, rows)) + 1
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    real = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    zeros, whole = torch.zeros(ids.shape), torch.zeros(len(rows), dtype=torch.long)
    return RolloutBatch(
        ids, real, real, ids, ids, zeros, zeros, ids, whole, whole[:1], whole[:1] - 1
    )


def measure_shapes(width: int, layers: int) -> None:
    torch.manual_seed(0)
    model = Qwen3Model(
        Qwen3Config(
            vocab_size=768,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=width // 4,
        )
    )
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters\n")
    print("| rows | tokens padded | packed | fewer | forward | forward and backward |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, rows in shapes().items():
        rollout, found = batch(rows), {}
        for packed, attention in HOW.items():
            model.config._attn_implementation = attention

            def learn(rollout: RolloutBatch = rollout) -> None:
                states_before(model, rollout)[rollout.attention_mask].sum().backward()

            with torch.no_grad():
                forward = seconds(lambda rollout=rollout: states_before(model, rollout))
            found[packed] = tokens_read(model, rollout), forward, seconds(learn)
        padded, packed = found[False], found[True]
        ratios = [f"{one / other:.2f}×" for one, other in zip(padded, packed, strict=True)]
        cells = (name, f"{padded[0]:,}", f"{packed[0]:,}", *ratios)
        print(f"| {' | '.join(cells)} |", flush=True)


# ---------------------------------------------------------------------------------------- recipes


class _Measured(Exception):
    """The numbers of a recipe are known, so that its run may end."""

    def __init__(self, cells: list[str]) -> None:
        super().__init__()
        self.cells = cells


class _Measure(Callback):
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, AgentModule)
        whole = trainer.datamodule.train_dataloader().whole.rollout  # pyright: ignore
        found = {packed: _read(trainer, pl_module, packed) for packed in HOW}
        cells = [f"{len(whole):,}", f"{int(whole.attention_mask.sum()):,}"]
        for padded, packed in zip(found[False], found[True], strict=True):
            numbers = (f"{n:,}" if isinstance(n, int) else f"{n:.2f} s" for n in (padded, packed))
            cells.append(" → ".join(numbers))
        raise _Measured(cells)


def _read(trainer: Trainer, agent: AgentModule, packed: bool) -> tuple[float, ...]:
    """Tokens and seconds of scoring, tokens and seconds of one pass of the update."""
    data: Any = trainer.datamodule  # pyright: ignore
    policy, whole = agent.actor.policy, data.train_dataloader().whole
    critic = agent.critic
    agent.packing = packed
    for model in (policy, critic and critic.backbone):
        if model is not None:
            model.config.get_text_config()._attn_implementation = HOW[packed]
    loader = MinibatchLoader(
        whole.rollout,
        whole.scores,
        whole.credit,
        agent.aggregation,
        minibatch_size=data.minibatch_size,
        micro_batch_size=data.micro_batch_size,
        passes=1,
        seed=0,
        by_prefix=packed,
    )

    def learn() -> None:
        for micro_batch in loader:
            rollout = micro_batch.rollout.to(agent.device)
            states = agent.actor.states(rollout)
            total: Tensor = agent.actor.logprobs(states, rollout, with_entropy=True)[0].sum()
            if critic is not None:
                total = total + critic(rollout, states).sum()
            total.backward()

    with torch.no_grad():
        scoring = seconds(lambda: score(agent, whole.rollout))
    return (
        sum(tokens_read(policy, chunk) for _, chunk in scoring_chunks(agent, whole.rollout)),
        scoring,
        sum(tokens_read(policy, each.rollout.to(agent.device)) for each in loader),
        seconds(learn),
    )


def measure_recipe(config: str, overrides: list[str]) -> list[str]:
    cli = VagentCLI(
        ["--config", config, "--trainer.limit_val_batches=0", *overrides],
        run=False,
    )
    cli.trainer.callbacks.append(_Measure())  # pyright: ignore
    try:
        cli.trainer.fit(cli.model, cli.datamodule)
    except _Measured as measured:
        return measured.cells
    raise RuntimeError(f"{config} started no iteration")


def main() -> None:
    parser = argparse.ArgumentParser(description="What model.packing saves.")
    parser.add_argument("what", choices=["shapes", "recipes"])
    parser.add_argument("configs", nargs="*")
    parser.add_argument("--width", type=int, default=128, help="of the random model")
    parser.add_argument("--layers", type=int, default=4, help="of the random model")
    known, overrides = parser.parse_known_args()
    logging.disable(logging.INFO)
    if known.what == "shapes":
        measure_shapes(known.width, known.layers)
        return
    print(
        "| recipe | rows | tokens in rows | scoring reads | in | a pass of the update reads | in |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for config in known.configs:
        try:
            cells = measure_recipe(config, overrides)
        except VagentError as error:
            print(f"{config}: {error}", file=sys.stderr)
            continue
        print(f"| {' | '.join([Path(config).stem, *cells])} |", flush=True)


if __name__ == "__main__":
    main()
