"""The project's datamodule, where each iteration plays the next of the enumerated batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests import toy
from tests.exact.models import BANNED, TEMPERATURE
from tests.exact.world import Batch, Episodes
from vagentrl.datamodule import RolloutDataModule
from vagentrl.engines import ScriptedEngine
from vagentrl.engines.base import Sampling
from vagentrl.rollout.collection import CollectionPlan
from vagentrl.rollout.draws import Draws, World
from vagentrl.rollout.episodes import Episode
from vagentrl.rollout.source import TRAIN, EpisodeSource
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
        self.engine = ScriptedEngine([], encode=lambda text: [])

    def collect(self, episodes: Sequence[Episode], *_: Any) -> list[Trajectory]:
        """The trajectories of these episodes, by their iteration and group."""
        members = Counter[int]()
        trajectories = []
        for episode in episodes:
            group = episode.group_id
            index = self.batches[episode.iteration].groups[group][members[group]]
            members[group] += 1
            trajectories.append(replace(self.worlds[group][index], group_id=group))
        return trajectories

    def close(self) -> None: ...


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
        super().__init__(
            env=toy.Countdown,  # no environment is made
            sampling=Sampling(temperature=TEMPERATURE),
            group_size=len(batches[0].groups[0]),
            at_limit="bootstrap",
            **settings,
        )
        self.batches = batches
        collector: Any = EnumeratedCollector(worlds, batches)
        renderer: Any = SimpleNamespace(banned_ids=BANNED)
        self.collector, self.renderer = collector, renderer
        plan = CollectionPlan(
            groups=self.groups,
            group_size=self.group_size,
            turns=None,
            filter=self.filter,
            sampling=self.sampling,
            staleness=0,
            seed=self.seed,
        )
        self.source = EpisodeSource(collector, plan, Draws([World(TRAIN)], seed=self.seed))

    def setup(self, stage: str) -> None:
        """Load no tokenizer and start no environment."""
