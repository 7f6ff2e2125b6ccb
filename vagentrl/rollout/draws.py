"""Draws the world and the initial state of every group of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from vagentrl.curricula import Curriculum, GroupResult
from vagentrl.environment import seed_of
from vagentrl.rollout.seeds import mix
from vagentrl.schedules import Schedule, share_at, shares_of
from vagentrl.types import Trajectory


@dataclass(frozen=True)
class World:
    """One of the environments to train on.

    Attributes:
        name: Its name.
        weight: Its share of the groups, relative to the other worlds'.
        starts: Number of its initial states, which training goes through in epochs; None draws
            initial states without end.
    """

    name: str
    weight: float | Schedule = 1.0
    starts: int | None = None


class Draws:
    """Decides which world and which seed each group gets; every rank decides the same.

    A world with a known number of starts is gone through in epochs, each in an order of its own
    that the seed determines.

    Args:
        worlds: The environments to train on.
        curriculum: Changes how often worlds and starts are drawn; None for no change.
        seed: Determines the draws, together with the iteration.
    """

    def __init__(
        self, worlds: Sequence[World], curriculum: Curriculum | None = None, seed: int = 1
    ) -> None:
        self.worlds = {world.name: world for world in worlds}
        self.curriculum = curriculum
        self.seed = seed
        self._visited = dict.fromkeys(self.worlds, 0)  # places of all epochs that were passed
        self._orders: dict[str, tuple[int, np.ndarray]] = {}  # of the current epoch

    def draw(self, batch: int, first: int, count: int) -> list[tuple[str, int]]:
        """The world and the seed of each group.

        Args:
            batch: Number of the batch.
            first: Number of the first group within the batch.
            count: Number of groups.
        """
        worlds = self.assign(count, mix(self.seed, batch, 7, first), batch)
        return [
            (world, seed_of("train", self._start(world, batch, first + group)))
            for group, world in enumerate(worlds)
        ]

    def assign(self, count: int, seed: int, iteration: int = 0) -> list[str]:
        """Divide places among the worlds by their weights, each number rounded up or down.

        Systematic sampling: the expected number of each world's places is exact.
        """
        names = list(self.worlds)
        if len(names) == 1:
            return names * count
        rng = np.random.default_rng(seed)
        ends = list(accumulate(self.weights(iteration).values()))
        points = (np.arange(count) + rng.random()) / count * ends[-1]
        chosen = np.searchsorted(ends, points, side="right").clip(max=len(names) - 1)
        return [names[number] for number in rng.permutation(chosen)]

    def weights(self, iteration: int) -> dict[str, float]:
        """Each world's share of the groups of an iteration."""
        factor = (lambda world: 1.0) if self.curriculum is None else self.curriculum.weight
        raw = {
            name: share_at(world.weight, iteration) * factor(name)
            for name, world in self.worlds.items()
        }
        return shares_of(raw, iteration)

    def epochs(self, world: str) -> float | None:
        """How often all starts of a world were gone through; None where they are not numbered."""
        starts = self.worlds[world].starts
        return None if starts is None else self._visited[world] / starts

    def observe(self, trajectories: Sequence[Trajectory]) -> None:
        """Let the curriculum see how an iteration's episodes went; failed ones do not count."""
        if self.curriculum is None:
            return
        groups: dict[int, list[Trajectory]] = {}
        for trajectory in trajectories:
            if trajectory.error is None:
                groups.setdefault(trajectory.group_id, []).append(trajectory)
        self.curriculum.observe([self._result(group) for group in groups.values()])

    def _result(self, group: Sequence[Trajectory]) -> GroupResult:
        world, seed = group[0].environment, group[0].seed
        start = None if self.worlds[world].starts is None else seed // 2
        return GroupResult(world, start, sum(member.success for member in group) / len(group))

    def _start(self, world: str, batch: int, group: int) -> int:
        starts = self.worlds[world].starts
        if starts is None:
            return mix(self.seed, batch, 2, group)
        rng = np.random.default_rng(mix(self.seed, batch, 10, group))
        start = self._next(world, starts)
        for _ in range(starts):  # at most one epoch, if all is to be passed over
            if self.curriculum is None or rng.random() >= self.curriculum.pass_over(world, start):
                break
            start = self._next(world, starts)
        return start

    def _next(self, world: str, starts: int) -> int:
        """The next start of a world's epoch, or the first one of its next epoch."""
        epoch, place = divmod(self._visited[world], starts)
        self._visited[world] += 1
        if self._orders.get(world, (None,))[0] != epoch:
            number = list(self.worlds).index(world)
            rng = np.random.default_rng(mix(self.seed, 9, number, epoch))
            self._orders[world] = epoch, rng.permutation(starts)
        return int(self._orders[world][1][place])

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"visited": dict(self._visited)}
        if self.curriculum is not None:
            state["curriculum"] = self.curriculum.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        # A world that the earlier run did not have begins with its first epoch.
        self._visited |= {
            name: visited
            for name, visited in state_dict["visited"].items()
            if name in self._visited
        }
        if self.curriculum is not None and "curriculum" in state_dict:
            self.curriculum.load_state_dict(state_dict["curriculum"])
