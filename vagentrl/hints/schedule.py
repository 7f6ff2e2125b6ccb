"""A share that changes over the training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vagentrl.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """From one share to another over so many iterations, and then it stays.

    Args:
        start: The share in iteration 0.
        end: The share from iteration `iterations` on.
        iterations: How long the way takes.
        shape: ``linear``; ``cosine``, which leaves and arrives gently; or ``exponential``, which
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
                f"an exponential Schedule goes from {self.start} to {self.end}, but no factor "
                "leads to or from 0; give a small share, or another shape"
            )

    def at(self, iteration: int) -> float:
        """The share in an iteration."""
        way = min(iteration / self.iterations, 1.0)
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** way
        if self.shape == "cosine":
            way = (1 - math.cos(math.pi * way)) / 2
        return self.start + way * (self.end - self.start)


def share_at(share: float | Schedule, iteration: int) -> float:
    """A share that may have a schedule."""
    return share.at(iteration) if isinstance(share, Schedule) else share


def check_share(name: str, share: float) -> None:
    """Raise unless it is one."""
    if not 0 <= share <= 1:
        raise ConfigError(f"{name} is {share}; it is a share between 0 and 1")
