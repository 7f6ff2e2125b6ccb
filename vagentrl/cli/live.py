"""Serves a folder of trajectories with what the page needs to play in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from vagentrl.cli.plugins import load_plugins
from vagentrl.cli.recipe_environments import specs_of, worlds_of
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.play.live import LiveGames
from vagentrl.play.store import GameStore
from vagentrl.viewer.reading import read_run
from vagentrl.viewer.server import HOST, LOCAL, ViewerServer
from vagentrl.viewer.site import Live, Site

if TYPE_CHECKING:
    from vagentrl.policy import Policy

CONFIG = "config.yaml"
TRAIN = "train"
"""What trajectories call the training environment of a run."""


def serve(
    run: str | Path,
    port: int,
    host: str = HOST,
    *,
    recipe: str | None = None,
    policy: str | None = None,
    workers: Literal["thread", "process"] = "process",
    timeout_s: float = 60.0,
    beside: bool = True,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        run: The folder of a run, of an evaluation or of games.
        port: Port of the page; 0 takes any that is free.
        host: Address to listen on.
        recipe: The file that names the environments; None for the one in the folder.
        policy: A checkpoint to ask, beside those that the folder names.
        workers: How environments run in which people play.
        timeout_s: Seconds that an environment may take for an answer.
        beside: Whether something else writes the folder's trajectories, as a run does.
    """
    stored = read_run(run)
    games, live = _games(stored.folder, host, recipe, policy, workers, timeout_s, beside)
    site = Site(stored, live)
    for problem in site.problems:
        print(f"vagentrl: {problem}", file=sys.stderr)
    with ViewerServer(lambda: Site(read_run(run), live), port, host, games) as server:
        count = f"{site.trajectories:,} trajectories of {site.run.name}"
        print(f"{count} at {server.address} (Ctrl-C ends)", flush=True)
        if games is None:
            print(f"vagentrl: what if: {live.problem}", file=sys.stderr)
            server.serve_forever()
            return
        with closing(games):
            server.serve_forever()


def _games(
    folder: Path,
    host: str,
    recipe: str | None,
    policy: str | None,
    workers: Literal["thread", "process"],
    timeout_s: float,
    beside: bool = True,
) -> tuple[LiveGames | None, Live]:
    """What plays, or why nothing can be played."""
    if host not in LOCAL:
        return None, Live(f"nothing can be played on {host}, because it runs code: use {HOST}")
    file = Path(recipe) if recipe is not None else folder / CONFIG
    if not file.is_file():
        said = f"{file} is missing, which says what was played; name the recipe with --recipe"
        return None, Live(said)
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
        specs_of(config if isinstance(config, dict) else {}, str(file))
    except (yaml.YAMLError, UnicodeDecodeError, OSError, ConfigError) as error:
        return None, Live(f"{file} does not say what was played: {str(error).splitlines()[0]}")
    policies = _policies(folder, config, policy)
    games = LiveGames(
        GameStore(folder, beside=beside),
        partial(_environments, config),
        {name: partial(_policy, source, config) for name, source in policies.items()},
        workers=workers,
        timeout_s=timeout_s,
    )
    return games, Live(None, tuple(policies))


def _environments(config: Mapping[str, Any]) -> dict[str, Callable[[], Environment]]:
    load_plugins(with_engines=False)
    try:
        return dict(worlds_of(config, TRAIN))
    except SystemExit as error:  # the parser has printed why
        raise ConfigError(
            "the environments cannot be made from the configuration; the terminal says why"
        ) from error


def _policies(folder: Path, config: Mapping[str, Any], policy: str | None) -> dict[str, str]:
    """The checkpoints that may be asked, by name: the one that is named, then the last ones."""
    named = {} if policy is None else {policy: policy}
    for name, source in (config.get("policies") or {}).items():
        named[str(name)] = str(source)
    files = sorted((folder / "checkpoints").glob("*.ckpt"), key=lambda f: f.stat().st_mtime)
    return named | {file.stem: str(file) for file in reversed(files)}


def _policy(source: str, config: Mapping[str, Any]) -> Policy:
    from vagentrl.cli.recipe_models import context_and_sampling  # these take seconds
    from vagentrl.policy import load_policy

    load_plugins(with_engines=False)
    try:
        context, sampling = context_and_sampling(source, config)
    except SystemExit as error:  # the parser has printed why
        raise ConfigError(
            "the configuration does not say how the model is played; the terminal says why"
        ) from error
    policy = load_policy(source, context=context)
    policy.sampling = sampling or policy.sampling
    return policy
