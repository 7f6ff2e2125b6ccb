"""The file of an evaluation: a line for each episode, so that an interrupted one goes on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vagentrl.errors import ConfigError
from vagentrl.rollout.report import turn_means
from vagentrl.types import Trajectory

log = logging.getLogger(__name__)

EPISODES, SETTINGS = "episodes.jsonl", "settings.json"
CONFIG = "config.yaml"
"""What is played, as the command line was told; `evaluate` itself never reads it."""


@dataclass(frozen=True)
class PlayedEpisode:
    """How an episode of an evaluation went.

    Attributes:
        policy: Name of the policy.
        environment: Name of the environment.
        seed: Seed of the initial state.
        sample: Number of the episode among those from the same seed, from 0.
        success: Whether it succeeded.
        total_reward: The undiscounted sum of its rewards.
        turns: Number of turns.
        stop: How it ended.
        reply_tokens: Number of tokens in all replies.
        cost: What an endpoint charged, in the currency of its prices.
        metrics: Means over its turns of the environment's own metrics.
        error: The error of a failed episode.
    """

    policy: str
    environment: str
    seed: int
    sample: int
    success: bool
    total_reward: float
    turns: int
    stop: str
    reply_tokens: int = 0
    cost: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What tells the episode from others of the evaluation."""
        return self.policy, self.environment, self.seed, self.sample

    @classmethod
    def of(
        cls, policy: str, environment: str, sample: int, trajectory: Trajectory
    ) -> PlayedEpisode:
        """The record of a trajectory."""
        return cls(
            policy=policy,
            environment=environment,
            seed=trajectory.seed,
            sample=sample,
            success=trajectory.success and trajectory.error is None,
            total_reward=float(trajectory.total_reward),
            turns=len(trajectory.turns),
            stop=trajectory.stop,
            reply_tokens=sum(len(turn.reply_ids) for turn in trajectory.turns),
            metrics=turn_means([turn.metrics for turn in trajectory.turns]),
            error=trajectory.error,
        )


class Ledger:
    """The episodes of an evaluation, in its folder.

    Args:
        folder: The folder; made if need be.
        settings: What decides the episodes. A folder with other settings is refused.

    Attributes:
        episodes: The episodes that have not failed, by `PlayedEpisode.key`.

    Raises:
        ConfigError: When the folder holds another evaluation, or something else.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._check_settings(json.loads(json.dumps(settings)))
        self.episodes = {
            episode.key: episode
            for episode in read_episodes(folder / EPISODES)
            if episode.error is None  # what has failed is played again
        }
        self._end_line()

    def add(self, episode: PlayedEpisode) -> None:
        """Write an episode down at once."""
        if episode.error is None:
            self.episodes[episode.key] = episode
        with (self.folder / EPISODES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(episode)) + "\n")

    def _check_settings(self, settings: dict[str, Any]) -> None:
        path = self.folder / SETTINGS
        if not path.is_file():
            if {entry.name for entry in self.folder.iterdir()} - {CONFIG}:
                raise ConfigError(f"output: {self.folder} holds other things; name a new folder")
            aside = path.with_suffix(".partial")
            aside.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
            os.replace(aside, path)
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        differ = [name for name in settings if settings[name] != before.get(name)]
        if differ:
            said = "; ".join(f"{name} was {before.get(name)!r}" for name in differ)
            raise ConfigError(
                f"output: {self.folder} holds an evaluation with other settings ({said[:500]}); go "
                "on with those, or name a new folder"
            )

    def _end_line(self) -> None:
        """End a last line that a killed process left unfinished, so that the next one is whole."""
        path = self.folder / EPISODES
        if path.is_file() and path.stat().st_size:
            with path.open("rb+") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")


def read_episodes(path: Path) -> Iterator[PlayedEpisode]:
    """The episodes of a file; a line that was torn is left out with a warning."""
    if not path.is_file():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")):
        if not line.strip():
            continue
        try:
            yield PlayedEpisode(**json.loads(line))
        except (ValueError, TypeError):
            log.warning("%s: line %d is no whole episode and is left out", path, number + 1)
