"""The project's datamodule, where each iteration plays the next of the enumerated batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.exact.models import TEMPERATURE
from tests.exact.world import Batch, Episodes
from vagentrl.datamodule import RolloutDataModule
from vagentrl.engines import ScriptedEngine
from vagentrl.engines.base import Sampling
from vagentrl.rollout.collector import Episode
from vagentrl.types import Trajectory


class EnumeratedCollector:
    """Stands in for the collector: returns the episodes of the iteration's batch.

    Args:
        worlds: For each group, the episodes of its initial state.
        batches: The batch of each iteration.
    """

    def __init__(self, worlds: Sequence[Episodes], batches: Sequence[Batch]) -> None:
        self.worlds = worlds
        self.batches = batches
        self.pools: dict[str, Any] = {}

    def collect(self, episodes: Sequence[Episode], *_: Any) -> list[Trajectory]:
        members = Counter[int]()
        trajectories = []
        for episode in episodes:
            group = episode.group_id
            index = self.batches[episode.iteration].groups[group][members[group]]
            members[group] += 1
            trajectories.append(replace(self.worlds[group][index], group_id=group))
        return trajectories


class EnumeratedData(RolloutDataModule):
    """The datamodule with an `EnumeratedCollector`.

    Args:
        worlds: For each group, the episodes of its initial state.
        batches: The batch of each iteration.
        settings: Settings of the datamodule.
    """

    def __init__(
        self, worlds: Sequence[Episodes], batches: Sequence[Batch], **settings: Any
    ) -> None:
        unused: Any = None
        super().__init__(
            env=unused,
            engine=ScriptedEngine([], encode=lambda text: []),
            sampling=Sampling(temperature=TEMPERATURE),
            group_size=len(batches[0].groups[0]),
            **settings,
        )
        self.batches = batches
        collector: Any = EnumeratedCollector(worlds, batches)
        self.collector = collector
        self.renderer = unused

    def setup(self, stage: str) -> None:
        """Load no tokenizer and start no environment."""
