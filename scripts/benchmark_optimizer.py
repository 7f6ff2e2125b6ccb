"""Measures a step of AdamW: one fused kernel against torch's default for the device.

    python scripts/benchmark_optimizer.py
    python scripts/benchmark_optimizer.py --parameters 1000000000 --device cuda

The weights are those of a stack of square layers. Prints the median seconds of `--repeats` steps,
and the largest difference between the weights of both after these steps.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from torch import nn

from vagentrl.modules.optimizer import AdamW

LAYERS = 48


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(model: nn.Module, fused: bool, device: str, repeats: int) -> float:
    """The median seconds of a step."""
    optimizer = AdamW(actor_lr=1e-5).build({"actor": model}, fused=fused)
    generator = torch.Generator(device).manual_seed(0)
    seconds = []
    for _ in range(repeats):
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator, device=device)
        started = clock(device)
        optimizer.step()
        seconds.append(clock(device) - started)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=gpu, choices=["cuda", "cpu"])
    parser.add_argument(
        "--parameters", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000]
    )
    parser.add_argument("--repeats", type=int, default=10)
    settings = parser.parse_args()
    print(f"{'parameters':>14}{'default, s':>12}{'fused, s':>10}{'difference':>12}")
    for count in settings.parameters:
        torch.manual_seed(0)
        side = round((count / LAYERS) ** 0.5)
        layers = [nn.Linear(side, side, bias=False) for _ in range(LAYERS)]
        plain = nn.Sequential(*layers).to(settings.device)
        other = copy.deepcopy(plain)
        seconds = [
            measure(model, fused, settings.device, settings.repeats)
            for model, fused in ((plain, False), (other, True))
        ]
        pairs = zip(plain.parameters(), other.parameters(), strict=True)
        apart = max(float((one - two).detach().abs().max()) for one, two in pairs)
        size = sum(weight.numel() for weight in plain.parameters())
        print(f"{size:>14,}{seconds[0]:>12.4f}{seconds[1]:>10.4f}{apart:>12.1e}")


if __name__ == "__main__":
    main()
