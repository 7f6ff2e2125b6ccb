"""The environments that a configuration names, for commands that play without training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from vagentrl.cli.parser import Parser
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.mixture import mixture_of

Named = Iterator[tuple[str, Callable[[], Environment]]]


def environments_of(config: Mapping[str, Any], name: str) -> Named:
    """The environments of a configuration, by name.

    Args:
        config: A recipe with ``data.env`` and perhaps ``data.val_envs``; the recipe of a warm start
            with ``env``; or a mapping with ``envs`` by name.
        name: Name of a single environment.

    Raises:
        ConfigError: When it names none.
    """
    for each, spec in specs_of(config, name).items():
        parser = Parser(prog="env")
        parser.add_argument("--env", type=Callable[[], Environment])
        text = spec if isinstance(spec, str) else json.dumps(spec)
        yield each, parser.instantiate(parser.parse_args(["--env", text])).env


def worlds_of(config: Mapping[str, Any], name: str) -> Named:
    """The environments of a configuration, those of a mixture one by one; see `environments_of`."""
    for each, make in environments_of(config, name):
        mixture = mixture_of(make)
        yield from ((each, make),) if mixture is None else mixture.worlds.items()


def specs_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """How a configuration describes its environments: import paths, or mappings with class_path.

    Args:
        config: As in `environments_of`.
        name: As in `environments_of`.

    Raises:
        ConfigError: When it names none.
    """
    data = config.get("data", config)
    if not isinstance(data, Mapping) or not ("env" in data or "envs" in data):
        raise ConfigError(f"--config: {name} names no environment under data.env, env or envs")
    named = dict(data.get("envs") or {})
    if "env" in data:
        named = {name: data["env"], **(data.get("val_envs") or {}), **named}
    return named


def spec_of(parser: Parser, parsed: Any) -> Any:
    """How ``--env`` of a command line describes its environment."""
    return yaml.safe_load(parser.dump(parsed, skip_validation=True))["env"]
