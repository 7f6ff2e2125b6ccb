"""``vagentrl play``: a person in the agent's seat."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from vagentrl.cli.live import serve
from vagentrl.cli.parser import CONFIG_HELP, Parser
from vagentrl.cli.plugins import load_plugins
from vagentrl.cli.recipe_environments import spec_of, specs_of, worlds_of
from vagentrl.environment import Environment, seed_of
from vagentrl.errors import ConfigError
from vagentrl.play.game import Game, GameStart
from vagentrl.play.store import PERSON, GameStore
from vagentrl.play.terminal import Terminal
from vagentrl.viewer.reading import FOLDER
from vagentrl.viewer.records import Provenance

USAGE = """vagentrl play CLASS [--env.SETTING VALUE ...] | --config CONFIG [--KEY VALUE ...]

  vagentrl play Bandit                               in the terminal
  vagentrl play FrozenLake --env.size 6              shows pictures: in the browser
  vagentrl play --config sokoban_text --split test   the environment of a recipe
  vagentrl view games                                look at what was played
"""
DESCRIPTION = """
Play an environment in the agent's place: see what it sees, reply, and learn what that earns. The
oracle advises on request. Games are stored for `vagentrl view`.
"""


def run_play(arguments: Sequence[str]) -> None:
    """``vagentrl play``."""
    load_plugins(with_engines=False)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--env", *arguments]
    parser = _parser()
    parsed = parser.parse_args(list(arguments))
    output = Path(parsed.output).expanduser()
    if parsed.env is not None and parsed.config is not None:
        raise ConfigError("give either an environment or --config")
    if parsed.env is not None:
        specs = {parsed.env.class_path.rpartition(".")[2]: spec_of(parser, parsed)}
    elif parsed.config is not None:
        config = yaml.safe_load(Path(parsed.config).read_text(encoding="utf-8"))
        specs = specs_of(config, Path(parsed.config).stem)
    else:
        raise ConfigError("no environment is named; give a class, or --config with a recipe")
    specs = _remembered(output, specs)
    factories = dict(worlds_of({"envs": specs}, ""))
    name = parsed.environment or next(iter(factories))
    if name not in factories:
        raise ConfigError(f"there is no environment {name!r}; there are {', '.join(factories)}")
    seed = seed_of(parsed.split, 0) if parsed.seed is None else parsed.seed
    begin = partial(_begin, factories[name], name, parsed.workers, parsed.timeout_s)
    page = _shows_images(begin, seed) if parsed.page is None else parsed.page
    _remember(output, specs)
    if page:
        settings = {"workers": parsed.workers, "timeout_s": parsed.timeout_s}
        serve(output, parsed.port, **settings, beside=False)
    else:
        _play_in_terminal(begin, seed, output)


def _parser() -> Parser:
    parser = Parser(prog="vagentrl play", usage=USAGE, description=DESCRIPTION)
    parser.add_argument(
        "--env", type=Callable[[], Environment] | None, default=None, help="the environment"
    )
    parser.add_argument("-c", "--config", type=str | None, default=None, help=CONFIG_HELP)
    parser.add_argument(
        "--environment", type=str | None, default=None,
        help="name of the environment, where the config has several; null: the first",
    )  # fmt: skip
    parser.add_argument(
        "--split", type=str, default="train", choices=["train", "validation", "test"],
        help="whose seeds are played",
    )  # fmt: skip
    parser.add_argument("--seed", type=int | None, default=None, help="null: the split's first")
    parser.add_argument(
        "--page", type=bool | None, default=None,
        help="play in the browser; null: where the environment shows images",
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=8765, help="port of the page; 0: any free one")
    parser.add_argument("--output", type=str, default="games", help="folder of the games")
    parser.add_argument(
        "--workers", type=str, default="process", choices=["thread", "process"],
        help="how the environment runs",
    )  # fmt: skip
    parser.add_argument(
        "--timeout_s", type=float, default=60.0, help="seconds that the environment may take"
    )
    return parser


def _begin(
    factory: Callable[[], Environment], name: str, workers: Any, timeout_s: float, seed: int
) -> Game:
    if not 0 <= seed < 2**62:
        raise ConfigError(f"seed is {seed}; give a number from 0 to 2^62 - 1")
    return Game(factory, GameStart.new(name, seed), workers=workers, timeout_s=timeout_s)


def _shows_images(begin: Callable[[int], Game], seed: int) -> bool:
    with closing(begin(seed)) as game:
        return bool(game.observation.images)


def _play_in_terminal(begin: Callable[[int], Game], seed: int, output: Path) -> None:
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="backslashreplace")  # pyright: ignore
    games: set[str] = set()

    def keep(game: Game) -> None:
        games.add(game.episode)
        store.add(game.trajectory(), Provenance(PERSON, game.episode))

    with closing(GameStore(output)) as store:
        Terminal(begin, keep, input, print).play(seed)
    if games:
        print(f"{len(games)} played; look at what was stored with: vagentrl view {output}")


# ----------------------------------------------------------------- what the folder's games play


def _config_file(output: Path) -> Path:
    return output / "config.yaml"


def _remembered(output: Path, specs: dict[str, Any]) -> dict[str, Any]:
    """The environments to play, under names that mean the same in all games of the folder."""
    if not _config_file(output).is_file():
        if output.is_dir() and any(output.iterdir()):
            raise ConfigError(f"--output: {output} holds other things; name a new folder")
        return specs
    before = yaml.safe_load(_config_file(output).read_text(encoding="utf-8"))
    known = before.get("envs") if isinstance(before, dict) else None
    if not isinstance(known, dict) or not (output / FOLDER).is_dir():
        raise ConfigError(f"--output: {output} holds no games; name a new folder")
    return {_name(name, spec, known): spec for name, spec in specs.items()}


def _name(name: str, spec: Any, known: dict[str, Any]) -> str:
    """The name under which the folder knows an environment; a new one if it does not."""
    number, candidate = 1, name
    while candidate in known and known[candidate] != spec:
        number += 1
        candidate = f"{name} {number}"
    return candidate


def _remember(output: Path, specs: dict[str, Any]) -> None:
    (output / FOLDER).mkdir(parents=True, exist_ok=True)
    file = _config_file(output)
    known = yaml.safe_load(file.read_text(encoding="utf-8"))["envs"] if file.is_file() else {}
    text = yaml.safe_dump({"envs": {**known, **specs}}, sort_keys=False)
    aside = file.with_suffix(".partial")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)
