"""Measures how fast environments draw what the agent sees, and how much of a step that is.

OMP_NUM_THREADS=1 python scripts/benchmark_renderers.py [--seconds 2] [--only Navigation]

Processor time of one thread, so that other programs on the machine count little. A step is one
random action with its observation; its share of drawing is the time of the observation, which
is all drawing but for a few words. Environments whose library is not installed are left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from vagentrl.environment import ActionEnvironment, seed_of
from vagentrl.errors import ConfigError
from vagentrl.types import Reply
from vagentrl_envs.baba import Baba
from vagentrl_envs.babyai import BabyAI
from vagentrl_envs.crafter import Crafter
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.navigation import Navigation
from vagentrl_envs.sokoban import LargeSokoban, Sokoban

RUNS = 5
"""Of each measurement; the fastest counts."""

HOUSE: dict[str, Any] = {"rooms": 4, "furniture": 8, "objects": 6, "turn_limit": 60}

ENVIRONMENTS: dict[str, Callable[[], ActionEnvironment]] = {
    "Sokoban": Sokoban,
    "Sokoban, cell 28": partial(Sokoban, cell=28),
    "LargeSokoban": partial(LargeSokoban, cell=28),
    "FrozenLake": FrozenLake,
    "BabyAI": partial(BabyAI, observation="image"),
    "BabyAI, cell 32": partial(BabyAI, observation="image", cell=32),
    "Baba": partial(Baba, observation="image"),
    "Crafter": partial(Crafter, observation="image"),
    "Crafter, cell 28": partial(Crafter, observation="image", cell=28),
    "Navigation, one room, size 84": partial(Navigation, size=84),
    "Navigation, one room, size 112": partial(Navigation, size=112),
    "Navigation, one room": Navigation,
    "Navigation, four rooms": partial(Navigation, **HOUSE),
    "Navigation, four rooms, size 448": partial(Navigation, size=448, **HOUSE),
    "Navigation, four rooms, MiniWorld": partial(Navigation, renderer="miniworld", **HOUSE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each environment")
    parser.add_argument("--only", default="", help="part of a name")
    given = parser.parse_args()
    print("| environment | pixels | frames/s | steps/s | drawing's share of a step |")
    print("|---|---|---|---|---|")
    for name, make in ENVIRONMENTS.items():
        if given.only.lower() in name.lower():
            try:
                print(measure(name, make(), given.seconds), flush=True)
            except ConfigError as error:
                print(f"| {name} | {error} | | | |", flush=True)


def measure(name: str, environment: ActionEnvironment, seconds: float) -> str:
    """A row of the table."""
    image = environment.reset(seed_of("train", 0)).images[0]
    frames, steps = zip(
        *(_times(environment, seconds / RUNS, run) for run in range(RUNS)), strict=True
    )
    frame, step = min(frames), min(steps)
    environment.close()
    size = f"{image.width} × {image.height}"
    return f"| {name} | {size} | {1 / frame:,.0f} | {1 / step:,.0f} | {frame / step:.0%} |"


def _times(environment: ActionEnvironment, seconds: float, seed: int) -> tuple[float, float]:
    """Seconds of an observation and of a step."""
    drawing = stepping = 0.0
    count = 0
    for actions in _episodes(environment, seconds, seed):
        started = time.process_time()
        environment.step(Reply("", actions=actions))
        stepped = time.process_time()
        environment._observe()
        drawn = time.process_time()
        stepping, drawing, count = (
            stepping + stepped - started,
            drawing + drawn - stepped,
            count + 1,
        )
    return drawing / count, stepping / count


def _episodes(
    environment: ActionEnvironment, seconds: float, seed: int
) -> Iterator[tuple[str, ...]]:
    """Random actions; a new episode begins after a few of them, or when one has ended."""
    rng, used = Random(seed), 0.0
    while used < seconds:
        environment.reset(seed_of("train", rng.randrange(10_000)))
        started = time.process_time()
        for _ in range(8):
            if environment._over:
                break
            yield environment.random_actions(rng)
        used += time.process_time() - started


if __name__ == "__main__":
    main()
