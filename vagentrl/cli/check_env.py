"""``vagentrl check-env``: can an environment be trained on, and what does play earn in it?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import yaml

from vagentrl.checkenv import LONG, SHORT, TABLE_HEAD, Effort, Report, check_environment
from vagentrl.claims.judge import Judge
from vagentrl.cli.parser import CONFIG_HELP, Parser
from vagentrl.cli.plugins import find_plugins, load_plugins
from vagentrl.cli.recipe_environments import environments_of
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError

USAGE = """vagentrl check-env CLASS [--env.SETTING VALUE ...] | --config CONFIG | --all

  vagentrl check-env FrozenLake                      by its short name, with default settings
  vagentrl check-env my_package.my_game.Game --env.size 6
  vagentrl check-env --config sokoban_text           data.env of a recipe, and its val_envs
  vagentrl check-env --all --short                   every installed environment, a line each
  vagentrl check-env --all --markdown                the table in docs/environments/table.md
"""
DESCRIPTION = """
Play an environment in a process of its own and say whether it can be trained on: are episodes
repeatable, the splits disjoint, states true, the oracle right, hostile replies harmless, memory and
processes released? It exits with 1 if a check fails.
"""


def run_check_env(arguments: Sequence[str]) -> None:
    """``vagentrl check-env``."""
    settings = _parser().parse_args(_spelt_out(arguments))
    effort = _effort(settings)
    chosen = list(_chosen(settings))
    if not chosen:
        raise ConfigError("no environment is named; give a class, --config or --all")
    reports = []
    for name, factory in chosen:
        report = check_environment(factory, name, effort, exact_judge(), progress=True)
        reports.append(report)
        _show(report, settings)
    if settings.markdown:
        print("\n".join([TABLE_HEAD, *(report.row() for report in reports)]))
    elif not settings.all:
        print(f"\n{TABLE_HEAD}\n" + "\n".join(report.row() for report in reports))
    if not all(report.sound for report in reports):
        raise SystemExit(1)


def _parser() -> Parser:
    parser = Parser(prog="vagentrl check-env", usage=USAGE, description=DESCRIPTION)
    load_plugins()
    parser.add_argument(
        "--env",
        type=Callable[[], Environment],
        default=None,
        help="the environment: a class with its settings, as in data.env",
    )
    parser.add_argument("-c", "--config", type=str | None, default=None, help=CONFIG_HELP)
    parser.add_argument(
        "--all", action="store_true", help="check every installed environment, a line each"
    )
    parser.add_argument(
        "--short", action="store_true", help="a few seconds for each environment, not minutes"
    )
    parser.add_argument(
        "--episodes",
        type=int | None,
        default=None,
        help=f"episodes over which memory must not grow ({LONG.episodes})",
    )
    parser.add_argument(
        "--seconds",
        type=float | None,
        default=None,
        help=f"seconds after which a check takes no further samples ({LONG.seconds:g})",
    )
    parser.add_argument("--markdown", action="store_true", help="print the table alone")
    return parser


def _spelt_out(arguments: Sequence[str]) -> list[str]:
    """The arguments with the class, which may stand first, as the value of ``--env``."""
    if arguments and not arguments[0].startswith("-"):
        return ["--env", *arguments]
    return list(arguments)


def _effort(settings: Any) -> Effort:
    effort = SHORT if settings.short else LONG
    given = {"episodes": settings.episodes, "seconds": settings.seconds}
    return replace(effort, **{name: value for name, value in given.items() if value is not None})


def _show(report: Report, settings: Any) -> None:
    if settings.markdown:
        print(report.line() if report.sound else report, file=sys.stderr, flush=True)
    else:
        print(report.line() if settings.all else report, flush=True)


def _chosen(settings: Any) -> Iterator[tuple[str, Callable[[], Environment]]]:
    """The environments to check, by name."""
    if sum([settings.all, settings.config is not None, settings.env is not None]) > 1:
        raise ConfigError("give one of a class, --config and --all")
    if settings.all:
        yield from installed_environments()
    elif settings.config is not None:
        path = Path(settings.config)
        yield from environments_of(yaml.safe_load(path.read_text(encoding="utf-8")), path.stem)
    elif settings.env is not None:
        yield settings.env.class_path, _parser().instantiate(settings).env


def installed_environments() -> Iterator[tuple[str, type[Environment]]]:
    """The environments that plug-ins bring and that need no settings, by their dotted path."""
    for plugin in find_plugins():
        for kind in plugin.classes(Environment):
            if not _needs_settings(kind):
                yield f"{kind.__module__}.{kind.__qualname__}", kind


def _needs_settings(kind: type[Environment]) -> bool:
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return any(
        parameter.default is Parameter.empty and parameter.kind not in variable
        for parameter in signature(kind).parameters.values()
    )


def exact_judge() -> Judge | None:
    """The judge that compares claims exactly, if its plug-in is installed."""
    for plugin in find_plugins():
        if plugin.name == "exact_state":
            judges: list[Callable[[], Judge]] = [*plugin.classes(Judge)]
            return judges[0]() if judges else None
    return None
