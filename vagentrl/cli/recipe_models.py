"""How a configuration has those models played that do not say it themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vagentrl.cli.parser import Parser
from vagentrl.contexts import Context
from vagentrl.engines.base import Sampling
from vagentrl.policy.load import find_source


def context_and_sampling(
    source: str, config: Mapping[str, Any]
) -> tuple[Context | None, Sampling | None]:
    """What a model sees of the past, and how it is sampled, in a recipe's own evaluations.

    Args:
        source: The model, as `vagentrl.load_policy` takes it.
        config: As in `environments_of`.

    Returns:
        None for what the recipe leaves open, and for both where a run has trained the model: its
        checkpoint says how it is played.
    """
    told = settings_of(config)
    if not told or find_source(source).record is not None:
        return None, None
    parser = Parser(prog="data")
    parser.add_argument("--context", type=Context | None, default=None)
    parser.add_argument("--sampling", type=Sampling | None, default=None)
    parser.add_argument("--val_sampling", type=Sampling | None, default=None)
    arguments = [f"--{key}={json.dumps(value)}" for key, value in told.items()]
    read = parser.instantiate(parser.parse_args(arguments))
    return read.context, read.val_sampling or (read.sampling and read.sampling.in_evaluations())


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration that `context_and_sampling` reads, as they stand there."""
    data = config.get("data", config)
    if not isinstance(data, Mapping):
        return {}  # what names no environment is refused elsewhere
    keys = ("context", "sampling", "val_sampling")
    return {key: data[key] for key in keys if data.get(key) is not None}
