"""Curricula: which worlds and tasks training draws more often than others, by how they went."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vagentrl.schedules import check_share


@dataclass(frozen=True)
class GroupResult:
    """How a group of episodes went.

    Attributes:
        world: Name of its world.
        start: Number of its start, in a world that has a known number of them; otherwise None.
        success_rate: Share of its episodes that succeeded.
    """

    world: str
    start: int | None
    success_rate: float


class Curriculum(ABC):
    """Changes how often worlds and their starts are drawn; it sees the results of every iteration.

    All ranks see the same results, so that all draw the same. The state is part of checkpoints.
    """

    @abstractmethod
    def weight(self, world: str) -> float:
        """The factor of a world's weight in the next iteration; 0 or more."""

    @abstractmethod
    def pass_over(self, world: str, start: int) -> float:
        """Probability that a start is passed over when its turn comes in an epoch; below 1."""

    @abstractmethod
    def observe(self, results: Sequence[GroupResult]) -> None:
        """See the results of an iteration's groups."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the curriculum remembers."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what another curriculum remembered."""


class BySuccess(Curriculum):
    """Draws what is always solved or never solved less often: it has nothing to teach.

    Returns within a group differ most where half of its episodes succeed. The factor of a world is
    ``floor + (1 - floor) * 4 p (1 - p)``, where p is an average of its success rates in which older
    iterations count less. A start that was always or never solved when it was last drawn is passed
    over with probability ``skip``.

    Args:
        floor: Factor of a world that is always or never solved; above 0, so that none is forgotten.
        memory: Weight of the earlier average when a new success rate comes in.
        skip: Probability of passing over a start that was always or never solved.

    Raises:
        ConfigError: When a setting is outside its range.
    """

    def __init__(self, floor: float = 0.1, memory: float = 0.8, skip: float = 0.75) -> None:
        check_share("BySuccess.floor", floor, above=0.0)
        check_share("BySuccess.memory", memory, below=1.0)
        check_share("BySuccess.skip", skip, below=1.0)
        self.floor = floor
        self.memory = memory
        self.skip = skip
        self._rates: dict[str, float] = {}
        self._settled: dict[str, set[int]] = {}

    def weight(self, world: str) -> float:
        rate = self._rates.get(world, 0.5)
        return self.floor + (1 - self.floor) * 4 * rate * (1 - rate)

    def pass_over(self, world: str, start: int) -> float:
        return self.skip if start in self._settled.get(world, ()) else 0.0

    def observe(self, results: Sequence[GroupResult]) -> None:
        for world in dict.fromkeys(result.world for result in results):
            rates = [result.success_rate for result in results if result.world == world]
            rate = sum(rates) / len(rates)
            before = self._rates.get(world, rate)
            self._rates[world] = self.memory * before + (1 - self.memory) * rate
        for result in results:
            if result.start is not None:
                settled = self._settled.setdefault(result.world, set())
                (settled.add if result.success_rate in (0, 1) else settled.discard)(result.start)

    def state_dict(self) -> dict[str, Any]:
        settled = {world: sorted(starts) for world, starts in self._settled.items()}
        return {"rates": dict(self._rates), "settled": settled}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._rates = dict(state_dict["rates"])
        self._settled = {world: set(starts) for world, starts in state_dict["settled"].items()}
