"""Checks that episodes leave the rest of their process as it is."""

from __future__ import annotations

import os
import pickle
import random
import signal
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from vagentrl.checkenv.bench import Bench, play_at_random
from vagentrl.checkenv.report import Checked, failed, passed
from vagentrl.environment import Environment, seed_of

TURNS = 20

ADVICE = {
    "the generator of `random`": "draw from random.Random, made in reset and kept on the instance",
    "the generator of numpy.random": "draw from np.random.default_rng((seed, transition_seed))",
    "the current folder": "give absolute paths, or cwd= to what is started",
    "variables of the environment": "set them before the run, or give env= to what is started",
    "handlers of signals": "leave signals to the trainer, which saves a checkpoint on some",
}
"""What to do in place of changing each of these."""


def check_process(bench: Bench) -> Checked:
    """Play two episodes, and see what else they change in the process.

    The trainer, and with threads every other environment, share it. Importing libraries may change
    it, so generators are compared around the second episode alone, and new variables do not count.
    """
    name = "rest of the process"
    before = _surroundings()
    environment = bench.make()
    try:
        _play(environment, seed_of("train", 0))
        generators = _generators()
        _play(environment, seed_of("train", 1))
        drawn = list(_differences(generators, _generators()))
    finally:
        environment.close()
    changed = [*drawn, *_differences(before, _surroundings())]
    if not changed:
        seen = "no global generator, folder, variable or signal handler is changed"
        return Checked((passed(name, seen),))
    return Checked((failed(
        name,
        f"an episode changes {' and '.join(changed)}",
        "none, because the trainer and other environments use them too",
        "; ".join(ADVICE[each] for each in changed),
    ),))  # fmt: skip


def _play(environment: Environment, seed: int) -> None:
    for turn, _ in enumerate(play_at_random(environment, seed, Random(seed)), 1):
        if turn == TURNS:
            return


def _generators() -> dict[str, Any]:
    return {
        "the generator of `random`": random.getstate(),
        "the generator of numpy.random": pickle.dumps(np.random.get_state()),
    }


def _surroundings() -> dict[str, Any]:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD)
    return {
        "the current folder": os.getcwd(),
        "variables of the environment": dict(os.environ),
        "handlers of signals": list(map(signal.getsignal, signals)),
    }


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name, value in before.items():
        now = after[name]
        if isinstance(value, dict):
            now = {key: now.get(key) for key in value}
        if value != now:
            yield name
