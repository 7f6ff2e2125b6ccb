"""Compares the speed of the advantage estimators with the published loops over tokens.

    OMP_NUM_THREADS=1 python scripts/benchmark_estimators.py

The loops implement the papers' formulas token by token, in plain Python on torch tensors. The
script checks each estimator against its loop, and then alternates between the two on one thread
and compares the medians of their CPU time. Finally it times the estimators with more and more
tokens.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vagentrl.advantages import (
    bi_level_gae,
    dual_discount_gae,
    gigpo,
    group_relative,
    masked_gae,
    reinforce_plus_plus,
    turn_gae,
    turn_group_relative,
)

TURNS = 8
OBSERVED = 16  # tokens between two turns
GAE: dict[str, Any] = {"gamma": 0.99, "lam": 0.95}
TURN_GAE: dict[str, Any] = {"turn_gamma": 0.95, "turn_lam": 0.9}
DUAL: dict[str, Any] = {
    "token_gamma": 1.0, "token_lam": 1.0, "step_gamma": 0.99, "step_lam": 0.95
}  # fmt: skip
Streams = tuple[Tensor, Tensor, Tensor, Tensor]  # rewards, values, action mask, turn ids: (N, T)


def make_streams(trajectories: int, tokens: int) -> Streams:
    """Make trajectories with turns of equal length, each with a reward on its last token."""
    length = tokens // TURNS
    turn_ids = torch.arange(TURNS).repeat_interleave(length)
    turn_ids[torch.arange(TURNS * length) % length < OBSERVED] = -1
    turn_ids = turn_ids.expand(trajectories, -1).contiguous()
    rewards = torch.zeros(turn_ids.shape)
    rewards[:, length - 1 :: length] = torch.randn(trajectories, TURNS)
    return rewards, torch.randn(turn_ids.shape), turn_ids >= 0, turn_ids


# ------------------------------------------------------------------------------ published loops


def loop_masked(streams: Streams, gamma: float, lam: float) -> Tensor:
    rewards, values, mask, _ = streams
    advantages = torch.zeros_like(values)
    for i in range(len(values)):
        following, carried = 0.0, 0.0
        for t in reversed(range(values.shape[1])):
            if mask[i, t]:
                delta = rewards[i, t] + gamma * following - values[i, t]
                carried = delta + gamma * lam * carried
                advantages[i, t] = carried
                following = values[i, t]
    return advantages


def loop_dual_discount(
    streams: Streams, token_gamma: float, token_lam: float, step_gamma: float, step_lam: float
) -> Tensor:
    rewards, values, mask, turn_ids = streams
    advantages = torch.zeros_like(values)
    for i in range(len(values)):
        following, carried, next_turn = 0.0, 0.0, -1
        for t in reversed(range(values.shape[1])):
            if mask[i, t]:
                inside = turn_ids[i, t] == next_turn
                gamma, lam = (token_gamma, token_lam) if inside else (step_gamma, step_lam)
                delta = rewards[i, t] + gamma * following - values[i, t]
                carried = delta + gamma * lam * carried
                advantages[i, t] = carried
                following, next_turn = values[i, t], turn_ids[i, t]
    return advantages


def loop_bi_level(
    streams: Streams, gamma: float, lam: float, turn_gamma: float, turn_lam: float
) -> Tensor:
    rewards, values, mask, turn_ids = streams
    rewards, advantages = rewards.clone(), torch.zeros_like(values)
    for i in range(len(values)):
        following, carried, next_turn = 0.0, 0.0, -1
        for t in reversed(range(values.shape[1])):
            if mask[i, t] and turn_ids[i, t] != next_turn:  # the last token of a turn
                delta = rewards[i, t] + turn_gamma * following - values[i, t]
                carried = delta + turn_gamma * turn_lam * carried
                following, next_turn = values[i, t], turn_ids[i, t]
                rewards[i, t] = carried + values[i, t]
        following, carried, next_turn = 0.0, 0.0, -1
        for t in reversed(range(values.shape[1])):
            if mask[i, t]:
                if turn_ids[i, t] != next_turn:
                    following, carried, next_turn = 0.0, 0.0, turn_ids[i, t]
                delta = rewards[i, t] + gamma * following - values[i, t]
                carried = delta + gamma * lam * carried
                advantages[i, t] = carried
                following = values[i, t]
    return advantages


# ------------------------------------------------------------------------------------- timing


def estimators(streams: Streams) -> dict[str, Callable[[], Tensor]]:
    """Return all estimators, bound to one batch with groups of 8 and 16 states per group."""
    rewards, values, mask, turn_ids = streams
    groups = torch.arange(len(rewards)) // 8
    states = torch.where(mask, groups[:, None] * 16 + turn_ids, -1)
    return {
        "Masked GAE": lambda: masked_gae(rewards, values, mask, **GAE)[0],
        "Turn-wise GAE": lambda: turn_gae(*streams, **TURN_GAE)[0],
        "Bi-Level GAE": lambda: bi_level_gae(*streams, **GAE, **TURN_GAE)[0],
        "Dual-discount GAE": lambda: dual_discount_gae(*streams, **DUAL)[0],
        "GRPO": lambda: group_relative((rewards * mask).sum(1), groups),
        "REINFORCE++": lambda: reinforce_plus_plus(rewards, mask, groups, gamma=1.0),
        "GiGPO": lambda: gigpo(
            rewards, mask, turn_ids, states, groups, turn_gamma=0.95, step_coef=1.0
        ),
        "Turn groups": lambda: turn_group_relative(rewards, mask, turn_ids, groups, turn_gamma=1.0),
    }


def seconds(call: Callable[[], Tensor], warm: bool) -> float:
    """Return the CPU time of a call, which on a shared machine excludes other processes.

    ``warm`` runs the call once before, because the previous call, with another number of tokens,
    has left caches and the allocator in another state.
    """
    if warm:
        call()
    started = time.process_time()
    call()
    return time.process_time() - started


def median_of_turns(
    calls: list[Callable[[], Tensor]], repeats: int, *, warm: bool = False
) -> list[float]:
    """Return the median seconds of each call; the calls alternate."""
    rounds = [[seconds(call, warm) for call in calls] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def compare_with_loops(repeats: int) -> None:
    streams = make_streams(128, 2048)
    ours = estimators(streams)
    loops = {
        "Masked GAE": partial(loop_masked, streams, **GAE),
        "Bi-Level GAE": partial(loop_bi_level, streams, **GAE, **TURN_GAE),
        "Dual-discount GAE": partial(loop_dual_discount, streams, **DUAL),
    }
    print(f"128 trajectories x 2,048 tokens, {TURNS} turns; medians of {repeats} runs in turns\n")
    print("| estimator | loop, s | vagentrl, ms | ratio |")
    print("|---|--:|--:|--:|")
    for name, loop in loops.items():
        torch.testing.assert_close(ours[name](), loop(), atol=1e-3, rtol=1e-3)
        slow, fast = median_of_turns([loop, ours[name]], repeats)
        print(f"| {name} | {slow:.1f} | {1000 * fast:.1f} | {slow / fast:,.0f} |", flush=True)


def grow(repeats: int) -> None:
    sizes = [8, 32, 128, 512]
    print("\nmilliseconds on trajectories of 2,048 tokens\n")
    print("| estimator |", " | ".join(f"{size * 2}k tokens" for size in sizes), "| 16k to 1M |")
    print("|---|" + "--:|" * (len(sizes) + 1))
    batches = [estimators(make_streams(size, 2048)) for size in sizes]
    for name in batches[0]:
        times = median_of_turns([batch[name] for batch in batches], repeats, warm=True)
        cells = " | ".join(f"{1000 * time:.2f}" for time in times)
        print(f"| {name} | {cells} | x{times[-1] / times[0]:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the advantage estimators.")
    parser.add_argument("--loop-repeats", type=int, default=3, help="runs of each slow loop")
    parser.add_argument("--repeats", type=int, default=11, help="runs of each size")
    settings = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    compare_with_loops(settings.loop_repeats)
    grow(settings.repeats)


if __name__ == "__main__":
    main()
