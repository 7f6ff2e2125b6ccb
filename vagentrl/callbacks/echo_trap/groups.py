"""What the returns within groups tell: whether there is still something to compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

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


def return_error(trajectories: Sequence[Trajectory]) -> float:
    """The standard error of the mean return, in units of reward.

    The episodes of a group are dependent, so the groups are the sample. NaN with fewer than two.
    """
    groups: dict[int, list[float]] = {}
    for each in trajectories:
        groups.setdefault(each.group_id, []).append(each.earlier_reward + each.total_reward)
    if len(groups) < 2:
        return math.nan
    return stdev(fmean(returns) for returns in groups.values()) / math.sqrt(len(groups))
