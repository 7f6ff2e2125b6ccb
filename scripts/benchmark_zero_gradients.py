"""Measures what gradients of 0 for unused weights cost a backward pass, in memory and time.

    python scripts/benchmark_zero_gradients.py
    python scripts/benchmark_zero_gradients.py --hidden 1024 --layers 24 --tokens 256

DDP needs a gradient for each weight in every backward pass. The loss of a random actor and critic
is computed in three ways: as it is; with a term for each weight that slices nothing out of it; and
with `vagentrl.modules.unused_weights.touch`. In the first table the loss depends on all weights,
in the second the actor is left out, as in a critic warm-up. Memory is the largest resident size of
a process of its own, beyond weights and stored gradients; seconds are medians of `--repeats`.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model

from vagentrl.modules.unused_weights import touch

GIB = 2**30


def as_it_is(loss: Tensor, weights: Iterable[Tensor]) -> Tensor:
    return loss


def empty_slices(loss: Tensor, weights: Iterable[Tensor]) -> Tensor:
    return loss + torch.stack([p.flatten()[:0].sum().float() for p in weights]).sum()


WAYS: dict[str, Callable[[Tensor, Iterable[Tensor]], Tensor]] = {
    "the loss alone": as_it_is,
    "empty slices of all weights": empty_slices,
    "touch": touch,
}


def random_model(settings: argparse.Namespace) -> Qwen3Model:
    return Qwen3Model(
        Qwen3Config(
            vocab_size=8192,
            hidden_size=settings.hidden,
            intermediate_size=4 * settings.hidden,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.hidden // 64,
            num_key_value_heads=settings.hidden // 64,
            head_dim=64,
        )
    ).eval()


def resident() -> int:
    """The largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(settings: argparse.Namespace) -> dict[str, float]:
    """Run backward passes in one way."""
    torch.manual_seed(0)
    actor, critic = random_model(settings), random_model(settings)
    weights = [*actor.parameters(), *critic.parameters()]
    for weight in weights:  # the gradients of an earlier micro-batch
        weight.grad = torch.zeros_like(weight)
    ids = torch.randint(8192, (1, settings.tokens))
    before, seconds = resident(), []
    for _ in range(settings.repeats):
        started = time.perf_counter()
        loss = critic(ids, use_cache=False).last_hidden_state.square().mean()
        if not settings.warmup:
            loss = loss + actor(ids, use_cache=False).last_hidden_state.square().mean()
        WAYS[settings.way](loss, weights).backward()
        seconds.append(time.perf_counter() - started)
    size = sum(weight.nbytes for weight in weights)
    return {
        "weights": size,
        "memory": resident() - before,
        "seconds": statistics.median(seconds),
        "parameters": sum(weight.numel() for weight in weights),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help="measure one way only and print it as JSON")
    parser.add_argument("--warmup", action="store_true", help="with --way: leave the actor out")
    return parser.parse_args()


def main() -> None:
    settings = parse()
    if settings.way:
        print(json.dumps(measure(settings)))
        return
    found: dict[str, float] = {}
    for title, flags in (("the loss depends on all weights", []), ("on half", ["--warmup"])):
        print(f"{title:<34}{'GiB':>8}{'seconds':>9}")
        for way in WAYS:
            command = [sys.executable, *sys.argv, "--way", way, *flags]
            found = json.loads(subprocess.run(command, check=True, stdout=-1, text=True).stdout)
            print(f"  {way:<32}{found['memory'] / GIB:>8.2f}{found['seconds']:>9.2f}")
    print(f"{int(found['parameters']):,} parameters, {found['weights'] / GIB:.2f} GiB of weights")


if __name__ == "__main__":
    main()
