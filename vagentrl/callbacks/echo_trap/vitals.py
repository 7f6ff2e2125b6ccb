"""The numbers of an iteration that the detector reads, and what is computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any, NamedTuple

LEAST_WINDOW = 5
"""Past iterations that are needed to tell a spike."""


class Estimate(NamedTuple):
    """A mean and its standard error; NaN where they are not known."""

    mean: float
    error: float

    def above(self, other: Estimate, errors: float = 0.0) -> bool:
        """Whether the mean is higher than another one by more than so many standard errors.

        A mean that is known is higher than one that is not.
        """
        if math.isnan(other.mean):
            return not math.isnan(self.mean)
        return self.mean > other.mean + errors * self.noise(other)

    def below(self, other: Estimate) -> bool:
        """Whether the mean is lower than another one by more than a standard error."""
        return other.mean - self.mean > self.noise(other)

    def noise(self, other: Estimate) -> float:
        """The standard error of the difference from another, independent mean."""
        return math.hypot(self.error, other.error)


UNKNOWN = Estimate(math.nan, math.nan)


@dataclass(frozen=True)
class Vitals:
    """The numbers of an iteration that the detector reads; NaN where one is not known.

    Attributes:
        iteration: Number of the iteration, from 1.
        success: Share of episodes that succeeded.
        reward: Mean return of the task, without bonuses.
        groups: Number of groups of episodes.
        numbers: Other metrics by name. Those of `SIGNS` and ``gradient_norm`` are read.
        held_out: Share of held-out episodes that succeeded, if there was an evaluation.
        bonus: Mean of what the policy learns from besides the task's return.
    """

    iteration: int
    success: Estimate
    reward: Estimate
    groups: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    held_out: Estimate = UNKNOWN
    bonus: Estimate = UNKNOWN

    def to_state(self) -> dict[str, Any]:
        """The numbers in plain types, as a checkpoint takes them."""
        state = dict(vars(self)) | {"numbers": dict(self.numbers)}
        return {k: list(v) if isinstance(v, Estimate) else v for k, v in state.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Vitals:
        """The numbers of `to_state`."""
        numbers: dict[str, Any] = dict(state)
        for name in ("success", "reward", "held_out", "bonus"):
            numbers[name] = Estimate(*state[name])
        return cls(**numbers)

    def completed(self, other: Vitals | None) -> Vitals:
        """These numbers; those of `numbers` that are not known, from another iteration."""
        if other is None:
            return self
        known = {name: value for name, value in self.numbers.items() if not math.isnan(value)}
        return replace(self, numbers={**other.numbers, **known})


def smoothed(recent: Sequence[Vitals]) -> Vitals:
    """The means over iterations, without those in which a number is not known."""
    names = {name for vitals in recent for name in vitals.numbers}
    return Vitals(
        recent[-1].iteration,
        success=_pooled([vitals.success for vitals in recent]),
        reward=_pooled([vitals.reward for vitals in recent]),
        groups=sum(vitals.groups for vitals in recent),
        numbers={n: _mean([vitals.numbers.get(n, math.nan) for vitals in recent]) for n in names},
        held_out=_pooled([vitals.held_out for vitals in recent]),
        bonus=_pooled([vitals.bonus for vitals in recent]),
    )


def robust_score(value: float, earlier: Sequence[float]) -> float:
    """By how many robust standard deviations the logarithm of a norm is above the median.

    The robust standard deviation is 1.4826 × the median absolute deviation (MAD), and at least a
    tenth: a norm that hardly ever changes would make a spike of any change.

    Args:
        value: The norm.
        earlier: Norms to compare with; those that are not positive and finite do not count.

    Returns:
        NaN if the value or too many of the others do not count.
    """
    logs = [math.log(norm) for norm in earlier if 0 < norm < math.inf]
    if len(logs) < LEAST_WINDOW or not 0 < value < math.inf:
        return math.nan
    middle = median(logs)
    deviation = 1.4826 * median(abs(each - middle) for each in logs)
    return (math.log(value) - middle) / max(deviation, 0.1)


def _pooled(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates."""
    errors = [each.error for each in estimates if math.isfinite(each.error)]
    error = math.hypot(*errors) / len(errors) if errors else math.nan
    return Estimate(_mean([each.mean for each in estimates]), error)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan
