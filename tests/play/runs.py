"""Folders as training runs leave them, with episodes that were really played."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.viewer.stored import store
from vagentrl.cli.recipe_environments import worlds_of
from vagentrl.play.game import Game, GameStart
from vagentrl.types import Trajectory

pytest.importorskip("pyarrow")


def play(env: Any, replies: Sequence[str], seed: int, **facts: Any) -> Trajectory:
    """Play an episode of an environment that is described as in a configuration."""
    [(_, factory)] = worlds_of({"env": env}, "train")
    with closing(Game(factory, GameStart("train", seed, 11), workers="thread")) as game:
        for reply in replies:
            game.reply(reply)
        return replace(game.trajectory(), **facts)


def make_run(folder: Path, env: Any, episodes: dict[int, Sequence[str]]) -> Path:
    """A run that played these replies from these seeds."""
    played = [play(env, replies, seed, group_id=seed) for seed, replies in episodes.items()]
    store(folder, played, iteration=3)
    (folder / "config.yaml").write_text(yaml.safe_dump({"data": {"env": env}}))
    return folder
