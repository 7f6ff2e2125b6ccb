"""Which groups are worth a gradient: chosen by their returns, before any forward pass is spent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, compress
from statistics import stdev

from vagentrl.errors import ConfigError, PartError
from vagentrl.types import Trajectory


class GroupFilter(ABC):
    """Keeps groups by how much the returns of their members differ; subclasses write ``keep``.

    A group whose members all fare alike says nothing about what to do better (RAGEN's StarPO-S:
    arXiv 2504.20073, section 4.2).

    Attributes:
        rounds: How often new groups are played until there are as many as wanted.
        rescale: Whether advantages are multiplied by the share of groups that is kept, so that a
            step that averages over fewer of them is no longer than one over all.
    """

    rounds: int = 1
    rescale: bool = False

    @abstractmethod
    def keep(self, spreads: Sequence[float]) -> list[bool]:
        """Whether to keep each group: a list of bools, as long as `spreads`.

        Args:
            spreads: Standard deviation of each group's returns, in units of reward; 0 for a group
                of one.
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
    """Keeps those with the largest spread."""

    def __init__(self, rescale: bool) -> None:
        self.rescale = rescale

    def keep(self, spreads: Sequence[float]) -> list[bool]:
        ranked = sorted(range(len(spreads)), key=lambda group: -spreads[group])  # ties: the first
        # whatever its rank, a group without spread has nothing to say
        best = {group for group in ranked[: self._count(spreads, ranked)] if spreads[group] > 0}
        return [group in best for group in range(len(spreads))]

    @abstractmethod
    def _count(self, spreads: Sequence[float], ranked: Sequence[int]) -> int: ...


class TopFraction(_Ranked):
    """Keeps a fixed share of the groups, those whose returns differ most (StarPO-S).

    Args:
        fraction: The share (the paper tries 0.25, 0.5 and 0.75); at least one group, as long as
            one differs at all.
        rescale: Multiply advantages by the share that is kept.
    """

    def __init__(self, fraction: float = 0.25, rescale: bool = False) -> None:
        _check_share("TopFraction.fraction", fraction)
        super().__init__(rescale)
        self.fraction = fraction

    def _count(self, spreads: Sequence[float], ranked: Sequence[int]) -> int:
        return max(1, round(self.fraction * len(spreads)))


class Nucleus(_Ranked):
    """Keeps the fewest groups that hold a share of all spread (StarPO-S, by top-p).

    Args:
        share: Of the sum of all groups' standard deviations.
        rescale: Multiply advantages by the share of groups that is kept.
    """

    def __init__(self, share: float = 0.9, rescale: bool = False) -> None:
        _check_share("Nucleus.share", share)
        super().__init__(rescale)
        self.share = share

    def _count(self, spreads: Sequence[float], ranked: Sequence[int]) -> int:
        wanted = self.share * sum(spreads) * (1 - 1e-9)  # whatever the order of the sum
        so_far = accumulate((spreads[group] for group in ranked), initial=0.0)
        return sum(total < wanted for total in so_far)


class DynamicSampling(GroupFilter):
    """Keeps groups with any spread, and plays more until the batch is full (DAPO).

    Yu et al., arXiv 2503.14476, section 3.2.

    Args:
        rounds: How often a full set of groups is played at most; the batch may then be smaller.
        min_std: Standard deviation of the returns that a group must exceed.
    """

    def __init__(self, rounds: int = 3, min_std: float = 1e-6) -> None:
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
    """The groups that a filter keeps, and the standard deviation of every group's returns."""
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    returns = [[trajectory.learned_reward for trajectory in group] for group in groups.values()]
    spreads = [stdev(members) if len(members) > 1 else 0.0 for members in returns]
    return list(compress(groups.values(), filter(spreads))), spreads
