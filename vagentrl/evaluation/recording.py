"""Keeps the trajectories of an evaluation, to be looked at with `vagentrl view`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vagentrl.environment import Split
from vagentrl.errors import ConfigError
from vagentrl.evaluation.ledger import PlayedEpisode
from vagentrl.evaluation.players import Player, Start
from vagentrl.types import Trajectory
from vagentrl.viewer.episodes import EpisodeFolder
from vagentrl.viewer.reading import FOLDER
from vagentrl.viewer.records import SPLITS, Provenance, RowWriter, StoredSplit, load_pyarrow

log = logging.getLogger(__name__)

STORED = 64
"""Episodes of each policy in each environment that are stored where nothing else is said."""


class Recording:
    """Stores the first episodes of each policy in each environment.

    An episode that failed is stored too. When it is played again, the new one takes its place.

    Args:
        output: The folder of the evaluation.
        split: Which seeds are played.
        starts: The episodes of each environment.
        store: How many of them are stored; None for `STORED`, or none without pyarrow.

    Raises:
        ConfigError: When episodes shall be stored, but pyarrow is not installed.
    """

    def __init__(
        self, output: Path, split: Split, starts: Mapping[str, Sequence[Start]], store: int | None
    ) -> None:
        self._split: StoredSplit = SPLITS[split]
        self._folder = EpisodeFolder(output / FOLDER) if _count(store) else None
        self._groups = {
            name: {start.seed: group for group, start in enumerate(s for s in each if not s.sample)}
            for name, each in starts.items()
        }
        self._stored = {name: set(each[: _count(store)]) for name, each in starts.items()}

    def add(self, player: Player, episode: PlayedEpisode, trajectory: Trajectory | None) -> None:
        """Store an episode if it is one of the first. A full disk does not end the evaluation."""
        name = episode.environment
        start = Start(episode.seed, episode.sample)
        if self._folder is None or trajectory is None or start not in self._stored[name]:
            return
        group = self._groups[name][episode.seed]
        writer = RowWriter(player.token_names)
        writer.add(
            replace(trajectory, environment=name, group_id=group),
            split=self._split,
            iteration=player.iteration,
            member=episode.sample,
            provenance=Provenance(episode.policy, json.dumps(episode.key)),
        )
        try:
            self._folder.add(writer.rows[0], writer.images)
        except OSError as error:
            log.warning("trajectories are no longer stored: %s", error)
            self._folder = None

    def close(self) -> None:
        """Join the files of single episodes."""
        if self._folder is not None:
            self._folder.close()


def _count(store: int | None) -> int:
    if store is not None:
        return store
    try:
        load_pyarrow()
    except ConfigError:
        return 0
    return STORED
