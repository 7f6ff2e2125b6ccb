"""Brings a game to a turn of a stored episode, and says whether it is still the same episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isclose
from typing import Any

from vagentrl.errors import ConfigError
from vagentrl.play.game import Game, GameStart
from vagentrl.types import Observation
from vagentrl.viewer.records import image_name, stored_text

SHOWN = 2000
"""Characters of a text that a disagreement quotes."""


@dataclass(frozen=True)
class Disagreement:
    """The first thing that is different when an episode is played again.

    Attributes:
        turn: In which turn, counted from 1.
        what: ``observation``, ``pictures``, ``hint`` or ``reward``.
        stored: What was stored of it.
        found: What it is now.
    """

    turn: int
    what: str
    stored: str
    found: str

    def as_plain(self) -> dict[str, Any]:
        return asdict(self)


def start_of(row: Mapping[str, Any]) -> GameStart:
    """What decides a stored episode.

    Raises:
        ConfigError: When a part of it is not stored.
    """
    if row["earlier_turns"]:
        raise ConfigError(
            f"{row['earlier_turns']} earlier turns of this episode are not stored with it (the run "
            "sets data.turns), so nobody can play on from here; take one that is stored from its "
            "start"
        )
    return GameStart(row["environment"], row["seed"], row["transition_seed"], row["iteration"])


def replay(game: Game, row: Mapping[str, Any], turns: int) -> Disagreement | None:
    """Play the first turns of a stored episode again.

    Args:
        game: A game of the same start that has just begun.
        row: The stored episode.
        turns: How many turns.

    Returns:
        Where the replay first differs from what is stored; None if it agrees.

    Raises:
        ConfigError: When the episode has fewer turns, is over after them, or ends earlier now.
        EnvError: When the environment fails.
    """
    stored = row["turns"]
    ended = row["stop"] in ("terminated", "truncated")
    if not 0 <= turns <= len(stored) or (turns == len(stored) and ended):
        raise ConfigError(f"the episode has {len(stored)} turns; none can follow turn {turns}")
    found: Disagreement | None = None
    for number, turn in enumerate(stored[:turns], 1):
        found = found or _compare(number, turn, game.observation)
        if game.stop is not None:
            raise ConfigError(
                f"played again, the episode ends after turn {number - 1} ({game.stop}), but the "
                "stored one goes on: the environment is not the one that was trained on, or its "
                "episodes do not follow from seeds and replies alone"
            )
        played = game.replay(turn["reply"], turn["finish"], turn["problem"])
        if not isclose(played.reward, turn["reward"], rel_tol=1e-9, abs_tol=1e-9):
            found = found or Disagreement(
                number, "reward", f"{turn['reward']:g}", f"{played.reward:g}"
            )
    if game.stop is not None:
        raise ConfigError(
            f"played again, the episode is over after turn {turns} ({game.stop}), but the stored "
            "one goes on there; the environment or its settings have changed"
        )
    return found or _compare(turns + 1, _seen_at(row, turns), game.observation)


def _seen_at(row: Mapping[str, Any], turn: int) -> Mapping[str, Any] | None:
    """What the agent saw in a turn, or after the last one; None if that is not stored."""
    if turn < len(row["turns"]):
        return row["turns"][turn]
    if row["final_observation"] is None:
        return None
    return {"observation": row["final_observation"], "images": row["final_images"], "hint": None}


def _compare(turn: int, stored: Mapping[str, Any] | None, seen: Observation) -> Disagreement | None:
    if stored is None:
        return None
    pictures = [image_name(image) for image in seen.images]
    pairs = {
        "observation": (stored["observation"], stored_text(seen.text)),
        "pictures": (", ".join(stored["images"]), ", ".join(pictures)),
        "hint": (stored["hint"], stored_text(seen.hint)),
    }
    for what, (before, now) in pairs.items():
        if before is not None and before != now:
            return Disagreement(turn, what, before[:SHOWN], now[:SHOWN])
    return None
