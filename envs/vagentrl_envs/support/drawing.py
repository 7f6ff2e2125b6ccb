"""Draws the task of a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vagentrl.environment import split_of, split_of_state
from vagentrl.errors import EnvError
from vagentrl_envs.support.families import FAMILIES, Draw
from vagentrl_envs.support.tasks import Family, Task

DRAWS = 1000
"""Draws after which a seed fails; nine in ten tasks are of the wrong split at worst."""


def draw_task(
    seed: int,
    families: Sequence[Family],
    faults: tuple[int, int] = (1, 4),
    terse: bool = False,
) -> Task:
    """Draw the task of a seed, whose start belongs to the seed's split.

    Args:
        seed: The only source of randomness.
        families: Families to draw from, all with the same probability.
        faults: Fewest and most faults of a case that is about a fault.
        terse: Whether the customer uses as few words as possible.
    """
    rng, split = np.random.default_rng(seed), split_of(seed)
    for _ in range(DRAWS):
        family = families[int(rng.integers(len(families)))]
        task = FAMILIES[family](Draw(rng, faults, terse))
        if split_of_state(identity(task)) == split:
            return task
    raise EnvError(f"no support task of the {split} split in {DRAWS} draws (seed {seed})")


def identity(task: Task) -> str:
    """What distinguishes the start of a task, as text; equal for equal starts.

    Of a case about the telephone alone that is the telephone: records that the agent never reads
    must not make two cases different.
    """
    if task.family == "device":
        return repr((task.family, task.start.phone))
    wishes = (task.family, task.opening, task.wish, task.persona.name, task.knows_pin)
    return repr((wishes, sorted(task.accepts), task.start))
