"""Where the games of people are kept, for `vagentrl view`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from vagentrl.environment import split_of
from vagentrl.types import Trajectory
from vagentrl.viewer.episodes import EpisodeFolder
from vagentrl.viewer.reading import BRANCHES, FOLDER
from vagentrl.viewer.records import SPLITS, Provenance, RowWriter, StoredSplit

PERSON = "person"
"""Who played, where it was a person."""


def name_by_number(ids: list[int]) -> list[str]:
    """Names of tokens whose tokenizer is not known."""
    return list(map(str, ids))


class GameStore:
    """Stores games, and branches of stored episodes, in a folder that `vagentrl view` opens.

    A game that is added again, with more turns, replaces what was stored of it.

    Args:
        folder: The folder: that of games, or of a run or an evaluation.
        beside: Write beside the trajectories of the folder, which something else writes.
        max_bytes: Most bytes, beyond which nothing more is added.

    Raises:
        ConfigError: When pyarrow is not installed.
    """

    def __init__(self, folder: Path, *, beside: bool = False, max_bytes: float = 1e9) -> None:
        below: tuple[str, Literal["branches", "episodes"]]
        below = (BRANCHES, "branches") if beside else (FOLDER, "episodes")
        self._episodes = EpisodeFolder(folder / below[0], below[1], max_bytes)

    def add(
        self,
        trajectory: Trajectory,
        provenance: Provenance,
        *,
        iteration: int = 0,
        group: int = 0,
        member: int = 0,
        split: StoredSplit | None = None,
        token_names: Callable[[list[int]], list[str]] = name_by_number,
    ) -> None:
        """Store a game, or a branch.

        Args:
            trajectory: What was played.
            provenance: By whom, and from where.
            iteration: The training iteration that the environment was told.
            group: Group of the origin.
            member: Place of the origin in its group.
            split: That of the origin; None for that of the seed.
            token_names: Names the tokens of its replies.

        Raises:
            OSError: When the disk is full, or the folder cannot be written.
        """
        writer = RowWriter(token_names)
        writer.add(
            trajectory,
            split=split or SPLITS[split_of(trajectory.seed)],
            iteration=iteration,
            member=member,
            provenance=provenance,
        )
        self._episodes.add(writer.rows[0] | {"group": group}, writer.images)

    def close(self) -> None:
        """Join the files of single games."""
        self._episodes.close()
