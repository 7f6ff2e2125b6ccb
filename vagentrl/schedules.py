"""Shares that change in the course of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vagentrl.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """A share that goes from one value to another over a number of iterations, and then stays.

    Args:
        start: The share in iteration 0.
        end: The share from iteration `iterations` on.
        iterations: Number of iterations until `end` is reached.
        shape: ``linear``; ``cosine``, which changes slowly at both ends; or ``exponential``, which
            changes by the same factor in every iteration and so needs shares above 0.
    """

    start: float
    end: float
    iterations: int
    shape: Literal["linear", "cosine", "exponential"] = "linear"

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            check_share(f"Schedule.{name}", getattr(self, name))
        if self.iterations < 1:
            raise ConfigError(f"Schedule.iterations is {self.iterations}; give 1 or more")
        if self.shape == "exponential" and min(self.start, self.end) == 0:
            raise ConfigError(
                f"an exponential Schedule cannot go from {self.start} to {self.end}, because no "
                "factor leads to or from 0; give a small share, or another shape"
            )

    def at(self, iteration: int) -> float:
        """The share in an iteration."""
        progress = min(iteration / self.iterations, 1.0)
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** progress
        if self.shape == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.start + progress * (self.end - self.start)


def share_at(share: float | Schedule, iteration: int) -> float:
    """Return the share in an iteration, whether it is constant or follows a schedule."""
    return share.at(iteration) if isinstance(share, Schedule) else share


def shares_of(weights: Mapping[str, float], iteration: int) -> dict[str, float]:
    """Weights as shares of their sum.

    Args:
        weights: From 0 up, by the names of worlds.
        iteration: The iteration in which they hold, for the error.

    Raises:
        ConfigError: When all are 0.
    """
    total = sum(weights.values())
    if total == 0:
        raise ConfigError(
            f"in iteration {iteration} the weights of all worlds are 0; the mixture's weights must "
            "leave at least one above 0"
        )
    return {name: weight / total for name, weight in weights.items()}


def check_share(
    name: str, share: float, *, above: float | None = None, below: float | None = None
) -> None:
    """Raise ConfigError unless `share` is from 0 to 1, and strictly within the bounds given."""
    if not 0 <= share <= 1:
        raise ConfigError(f"{name} is {share}; give a number from 0 to 1")
    if above is not None and share <= above:
        raise ConfigError(f"{name} is {share}; give a number above {above:g}")
    if below is not None and share >= below:
        raise ConfigError(f"{name} is {share}; give a number below {below:g}")
