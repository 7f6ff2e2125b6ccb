"""What the returns within groups tell: whether there is still something to compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from vagentrl.callbacks.echo_trap.vitals import Estimate
from vagentrl.filters import NO_SPREAD, KeepAll, select_groups
from vagentrl.types import Trajectory


def group_report(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Shares of the groups of at least two episodes in which all episodes did equally well.

    ``no_signal`` counts all of these groups, ``failed_alike`` those without a success. A group in
    which all succeed has nothing to teach either, but says that the task is learned.

    Args:
        trajectories: Whole episodes, none of them failed.

    Returns:
        Both shares; empty if no group has two members.
    """
    groups, spreads = select_groups(trajectories, KeepAll())
    compared = [pair for pair in zip(groups, spreads, strict=True) if len(pair[0]) > 1]
    if not compared:
        return {}
    alike = [group for group, spread in compared if spread <= NO_SPREAD]
    failed = [group for group in alike if not any(member.success for member in group)]
    return {
        "no_signal": len(alike) / len(compared),
        "failed_alike": len(failed) / len(compared),
    }


def mean_by_groups(
    trajectories: Sequence[Trajectory], value: Callable[[Trajectory], float]
) -> Estimate:
    """The mean of a value over episodes, and its standard error.

    The episodes of a group are dependent, so the groups are the sample of the error; it is NaN
    with fewer than two.

    Args:
        trajectories: At least one episode.
        value: What to average, in any unit.
    """
    groups: dict[int, list[float]] = {}
    for each in trajectories:
        groups.setdefault(each.group_id, []).append(value(each))
    mean = fmean(each for values in groups.values() for each in values)
    if len(groups) < 2:
        return Estimate(mean, math.nan)
    return Estimate(mean, stdev(map(fmean, groups.values())) / math.sqrt(len(groups)))
