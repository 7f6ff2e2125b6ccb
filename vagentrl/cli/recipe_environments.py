"""The environments that a configuration names, for commands that play without training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vagentrl.cli.parser import Parser
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError


def environments_of(
    config: Mapping[str, Any], name: str
) -> Iterator[tuple[str, Callable[[], Environment]]]:
    """The environments of a configuration, by name.

    Args:
        config: A recipe with ``data.env`` and perhaps ``data.val_envs``; the recipe of a warm start
            with ``env``; or a mapping with ``envs`` by name.
        name: Name of a single environment.

    Raises:
        ConfigError: When it names none.
    """
    data = config.get("data", config)
    if not isinstance(data, Mapping) or not ("env" in data or "envs" in data):
        raise ConfigError(f"--config: {name} names no environment under data.env, env or envs")
    named = dict(data.get("envs") or {})
    if "env" in data:
        named = {name: data["env"], **(data.get("val_envs") or {}), **named}
    for each, spec in named.items():
        parser = Parser(prog="env")
        parser.add_argument("--env", type=Callable[[], Environment])
        text = spec if isinstance(spec, str) else json.dumps(spec)
        yield each, parser.instantiate(parser.parse_args(["--env", text])).env
