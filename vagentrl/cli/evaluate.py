"""``vagentrl evaluate``: policies on environments, with intervals and a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vagentrl.cli.parser import CONFIG_HELP, Parser
from vagentrl.cli.plugins import load_plugins
from vagentrl.cli.recipe_environments import spec_of, specs_of, worlds_of
from vagentrl.cli.recipe_models import context_and_sampling, settings_of
from vagentrl.engines.base import Engine, Sampling
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.evaluation import PlayedEpisode, Player, PolicyPlayer, evaluate
from vagentrl.evaluation.ledger import CONFIG
from vagentrl.evaluation.tables import by_cell, comparison_table, detail_table, success_table
from vagentrl.noise import silence_noise

USAGE = """vagentrl evaluate [NAME=]POLICY ... --config CONFIG --output FOLDER [--KEY VALUE ...]

  vagentrl evaluate before=tiny-sokoban-vlm after=runs/sokoban_vlm/version_0 \\
      --config sokoban_vlm --output evaluations/sokoban --compare before
  vagentrl evaluate runs/mine --env FrozenLake --output evaluations/lake --samples 8
  vagentrl evaluate --config plan.yaml --output evaluations/api      policies and envs from a file
"""
DESCRIPTION = """
Play policies from the same initial states, and print success rates with 95 % intervals, pass@k and
differences. A policy is a checkpoint, a run's folder, an exported or a Hugging Face model, or one
that ships; `policies` of a config may also hold chat models behind an endpoint. An evaluation that
was interrupted goes on in the same folder.
"""


def run_evaluate(arguments: Sequence[str]) -> None:
    """``vagentrl evaluate``."""
    load_plugins()
    silence_noise()
    parser = _parser()
    parsed = parser.parse_args(list(arguments))
    settings = parser.instantiate(parsed)
    config = _read(settings.config)
    policies = dict(_policies(settings, config))
    specs = _specs(settings, parser, parsed, config)
    envs = dict(worlds_of({"envs": specs}, "") if specs else {})
    if not policies:
        raise ConfigError("no policy is named; give checkpoints or models as [NAME=]POLICY")
    if not envs:
        raise ConfigError("no environment is named; give --config with a recipe, or --env CLASS")
    if settings.compare is not None and settings.compare not in policies:
        raise ConfigError(
            f"--compare is {settings.compare!r}; the policies are {', '.join(policies)}"
        )
    players = _players(policies, settings, config)
    _write_config(Path(settings.output), specs, policies, settings_of(config))
    episodes = evaluate(
        players,
        envs,
        settings.output,
        episodes=settings.episodes,
        samples=settings.samples,
        split=settings.split,
        progress=not settings.quiet,
        store=settings.store,
    )
    report = _report(episodes, list(policies), list(envs), settings.samples, settings.compare)
    (Path(settings.output) / "report.md").write_text(report + "\n", encoding="utf-8")
    print(report)


def _parser() -> Parser:
    parser = Parser(prog="vagentrl evaluate", usage=USAGE, description=DESCRIPTION)
    parser.add_argument(
        "policies", nargs="*", type=str, help="checkpoints, runs or models, as [NAME=]POLICY"
    )
    parser.add_argument("-c", "--config", type=str | None, default=None, help=CONFIG_HELP)
    parser.add_argument(
        "--env", type=Callable[[], Environment] | None, default=None, help="a single environment"
    )
    parser.add_argument("--output", type=str, required=True, help="folder of the evaluation")
    parser.add_argument("--episodes", type=int, default=256, help="initial states of each")
    parser.add_argument("--samples", type=int, default=1, help="episodes from each initial state")
    parser.add_argument("--split", type=str, default="test", choices=["validation", "test"])
    parser.add_argument(
        "--compare", type=str | None, default=None, help="the policy that others are compared with"
    )
    parser.add_argument(
        "--sampling", type=Sampling | None, default=None, help="null: as each policy was trained"
    )
    parser.add_argument(
        "--engine", type=Callable[[], Engine] | None, default=None, help="samples the replies"
    )
    parser.add_argument(
        "--workers", type=str, default="thread", choices=["thread", "process"],
        help="how environments run",
    )  # fmt: skip
    parser.add_argument("--max_workers", type=int, default=256, help="episodes at once")
    parser.add_argument(
        "--store", type=int | None, default=None,
        help="episodes of each policy in each environment that are stored for `vagentrl view`, the "
        "first ones; null: 64, or 0 without pyarrow",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _read(path: str | None) -> dict[str, Any]:
    return {} if path is None else yaml.safe_load(Path(path).read_text(encoding="utf-8"))


def _policies(settings: Any, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The policies of the command line, and those of the config: models, or players by class."""
    names: set[str] = set()
    for argument in settings.policies:
        name, equals, source = argument.partition("=")
        name, source = (name, source) if equals else (argument, argument)
        if not name or not source or name in names:
            raise ConfigError(f"{argument!r} is no policy with a name of its own; give NAME=POLICY")
        names.add(name)
        yield name, source
    for name, policy in (config.get("policies") or {}).items():
        if name in names:
            raise ConfigError(f"two policies are named {name!r}; give each a name of its own")
        yield name, policy


def _players(
    policies: Mapping[str, Any], settings: Any, config: dict[str, Any]
) -> dict[str, Player]:
    return {
        name: _player(settings, policy, config) if isinstance(policy, str) else _made(name, policy)
        for name, policy in policies.items()
    }


def _player(settings: Any, source: str, config: dict[str, Any]) -> Player:
    context, sampling = context_and_sampling(source, config)
    return PolicyPlayer(
        source,
        settings.sampling or sampling,
        settings.engine,
        settings.workers,
        settings.max_workers,
        context,
    )


def _made(name: str, spec: Any) -> Player:
    """The player that a config describes by its class."""
    parser = Parser(prog=f"policies.{name}")
    parser.add_argument(f"--{name}", type=Player)
    return parser.instantiate(parser.parse_args([f"--{name}", json.dumps(spec)]))[name]


def _specs(settings: Any, parser: Parser, parsed: Any, config: dict[str, Any]) -> dict[str, Any]:
    """How the environments are described, by name."""
    if settings.env is not None:
        return {parsed.env.class_path.rpartition(".")[2]: spec_of(parser, parsed)}
    return {} if settings.config is None else specs_of(config, Path(settings.config).stem)


def _write_config(
    output: Path, specs: dict[str, Any], policies: Mapping[str, Any], told: dict[str, Any]
) -> None:
    """Write down what is played, for `vagentrl view`: it can then play on from any turn."""
    if output.is_dir() and {entry.name for entry in output.iterdir()} - {CONFIG}:
        return  # it goes on, or is refused
    named = {name: policy for name, policy in policies.items() if isinstance(policy, str)}
    output.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"policies": named, **told, "envs": specs}, sort_keys=False)
    (output / CONFIG).write_text(text, encoding="utf-8")


def _report(
    episodes: Sequence[PlayedEpisode],
    policies: Sequence[str],
    envs: Sequence[str],
    samples: int,
    compare: str | None,
) -> str:
    played = [episode for episode in episodes if episode.error is None]
    cells = by_cell(played)
    parts = [success_table(cells, policies, envs), detail_table(cells, samples)]
    if compare is not None:
        parts.append(comparison_table(cells, policies, envs, compare))
    if failed := [episode for episode in episodes if episode.error is not None]:
        parts.append(
            f"{len(failed)} episodes failed and are not counted; the first: {failed[0].error}. The "
            "same command plays them again."
        )
    return "\n\n".join(parts)
