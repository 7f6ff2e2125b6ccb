"""Group filters: which groups to learn from, chosen by their returns before any forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, compress
from statistics import stdev

from vagentrl.errors import ConfigError, PartError
from vagentrl.types import Trajectory

NO_SPREAD = 1e-6
"""Standard deviation of returns up to which the members of a group did equally well."""

FLOAT32_ROUNDING = 2.0**-23
"""Relative difference that storing a reward in float32 may cause; batches do."""


class GroupFilter(ABC):
    """Keeps groups by how much the returns of their members differ; subclasses write ``keep``.

    A group whose members all did equally well has nothing to compare, and so nothing to learn from
    (RAGEN's StarPO-S: arXiv 2504.20073, section 4.2).

    Attributes:
        rounds: How many times new groups may be played until enough are kept.
        rescale: Whether advantages are multiplied by the share of groups that was kept. A step over
            few groups is then as much shorter than a step over all.
    """

    rounds: int = 1
    rescale: bool = False

    @abstractmethod
    def keep(self, spreads: Sequence[float]) -> list[bool]:
        """Whether to keep each group: a list of bools, as long as `spreads`.

        Args:
            spreads: Standard deviation of each group's returns, in units of reward; 0 where they
                are equal.
        """

    def __call__(self, spreads: Sequence[float]) -> list[bool]:
        """What the subclass keeps, checked."""
        kept = self.keep(spreads)
        if (
            not isinstance(kept, list)
            or len(kept) != len(spreads)
            or not all(isinstance(each, bool) for each in kept)
        ):
            wanted = f"return a list with True or False for each of the {len(spreads)} groups"
            raise PartError.returned(self, "keep", kept, wanted)
        return kept


class KeepAll(GroupFilter):
    """Keeps every group."""

    def keep(self, spreads: Sequence[float]) -> list[bool]:
        return [True] * len(spreads)


class _Ranked(GroupFilter):
    """Keeps the groups with the largest spread, and none without spread."""

    def __init__(self, rescale: bool) -> None:
        self.rescale = rescale

    def keep(self, spreads: Sequence[float]) -> list[bool]:
        # largest first; of equal spreads the earlier group
        ranked = sorted(range(len(spreads)), key=lambda group: -spreads[group])
        best = set(ranked[: self._count(spreads, ranked)])
        return [group in best and spreads[group] > NO_SPREAD for group in range(len(spreads))]

    @abstractmethod
    def _count(self, spreads: Sequence[float], ranked: Sequence[int]) -> int:
        """How many groups to keep of those ranked by their spread."""


class TopFraction(_Ranked):
    """Keeps a fixed share of the groups, those whose returns differ most (StarPO-S).

    At least one group is kept, unless all have equal returns.

    Args:
        fraction: Share of the groups to keep (the paper tries 0.25, 0.5 and 0.75).
        rescale: Multiply advantages by the share that is kept.

    Raises:
        ConfigError: When ``fraction`` is not above 0 and at most 1.
    """

    def __init__(self, fraction: float = 0.25, rescale: bool = False) -> None:
        _check_share("TopFraction.fraction", fraction)
        super().__init__(rescale)
        self.fraction = fraction

    def _count(self, spreads: Sequence[float], ranked: Sequence[int]) -> int:
        return max(1, round(self.fraction * len(spreads)))


class Nucleus(_Ranked):
    """Keeps the fewest groups that hold a share of the sum of all spreads (StarPO-S, top-p).

    Args:
        share: Share of the sum of all groups' standard deviations.
        rescale: Multiply advantages by the share of groups that is kept.

    Raises:
        ConfigError: When ``share`` is not above 0 and at most 1.
    """

    def __init__(self, share: float = 0.9, rescale: bool = False) -> None:
        _check_share("Nucleus.share", share)
        super().__init__(rescale)
        self.share = share

    def _count(self, spreads: Sequence[float], ranked: Sequence[int]) -> int:
        # a little less than the share, which rounding of the sum must not make unreachable
        wanted = self.share * sum(spreads) * (1 - 1e-9)
        so_far = accumulate((spreads[group] for group in ranked), initial=0.0)
        return sum(total < wanted for total in so_far)


class DynamicSampling(GroupFilter):
    """Keeps groups with any spread, and plays more groups until the batch is full (DAPO).

    Yu et al., arXiv 2503.14476, section 3.2.

    Args:
        rounds: How many times a full set of groups is played at most; after the last, the batch may
            have fewer groups than wanted.
        min_std: Standard deviation of the returns that a group must exceed.

    Raises:
        ConfigError: When ``rounds`` is below 1 or ``min_std`` below 0.
    """

    def __init__(self, rounds: int = 3, min_std: float = NO_SPREAD) -> None:
        if rounds < 1:
            raise ConfigError(f"DynamicSampling.rounds is {rounds}; give at least 1")
        if min_std < 0:
            raise ConfigError(f"DynamicSampling.min_std is {min_std}; give 0 or more")
        self.rounds = rounds
        self.min_std = min_std

    def keep(self, spreads: Sequence[float]) -> list[bool]:
        return [spread > self.min_std for spread in spreads]


def _check_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise ConfigError(
            f"{name} is {share}, which keeps nothing or more than there is; give a share above 0, "
            "up to 1"
        )


def select_groups(
    trajectories: Sequence[Trajectory], filter: GroupFilter
) -> tuple[list[list[Trajectory]], list[float]]:
    """Choose the groups to learn from.

    Returns:
        The groups that the filter keeps, in the order in which they first appear, and the standard
        deviation of every group's returns: exactly 0 where they differ by rounding alone, and for a
        group of one.
    """
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    spreads = [_spread(group) for group in groups.values()]
    return list(compress(groups.values(), filter(spreads))), spreads


def _spread(group: Sequence[Trajectory]) -> float:
    """Standard deviation of a group's returns, 0 where they differ by rounding alone."""
    returns = [trajectory.learned_reward for trajectory in group]
    # rounding goes by the rewards, not by their sum, in which they may cancel
    summed = max(sum(abs(turn.reward + turn.bonus) for turn in each.turns) for each in group)
    if max(returns) - min(returns) <= FLOAT32_ROUNDING * summed:
        return 0.0
    return stdev(returns)
