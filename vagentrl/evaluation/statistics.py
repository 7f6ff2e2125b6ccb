"""Estimates from several episodes of each seed: pass@k, and the difference between two policies."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
"""Resamplings behind an interval and a p-value."""


def pass_at_k(successes: Sequence[tuple[int, int]], k: int) -> float:
    """The probability that at least one of k episodes from the same seed succeeds.

    The unbiased estimator of Chen et al. (2021), "Evaluating large language models trained on
    code", equation 1, averaged over seeds.

    Args:
        successes: For each seed the number of its successes and of its episodes.
        k: From 1 to the smallest number of episodes of a seed.
    """
    fails = [1 - comb(count - right, k) / comb(count, k) for right, count in successes]
    return sum(fails) / len(fails)


class Difference(NamedTuple):
    """How much higher one policy's mean is than another's, on the same seeds.

    Attributes:
        mean: The mean over seeds.
        low: Lower end of its 95 % interval, from resampled seeds (percentile bootstrap).
        high: Upper end.
        p: Probability of a mean at least as far from 0 if the policies were alike: a two-sided
            permutation test that flips the signs of the seeds' differences.
        seeds: Number of seeds.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int


def paired_difference(differences: Sequence[float], seed: int = 1) -> Difference:
    """The mean of paired differences with its interval and p-value.

    Episodes from the same initial state tend to end alike; differences within a state do not
    contain what its difficulty adds. The resampling is seeded, so the same input gives the same
    numbers.

    Args:
        differences: For each seed, one policy's mean over its episodes minus the other's; at least
            one.
        seed: Seed of the resampling.
    """
    values = np.asarray(differences, dtype=float)
    rng, count = np.random.default_rng(seed), len(values)
    parts = np.array_split(np.arange(RESAMPLES), max(count // 100, 1))  # to need little memory
    sizes = [(len(part), count) for part in parts]
    means = [values[rng.integers(count, size=size)].mean(axis=1) for size in sizes]
    signs = (rng.integers(2, size=size, dtype=np.int8) * 2 - 1 for size in sizes)
    flipped = np.concatenate([sign @ values / count for sign in signs])
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    # Rounding must not decide whether a flip with the same numbers is as extreme.
    extreme = np.abs(flipped) >= abs(values.mean()) - 1e-12
    p = (1 + int(extreme.sum())) / (1 + RESAMPLES)  # the observed signs are one of the flips
    return Difference(float(values.mean()), float(low), float(high), p, count)
