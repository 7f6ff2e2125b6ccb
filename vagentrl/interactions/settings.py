"""Typed settings of an interaction, read from its ``config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from jsonargparse import ArgumentParser

from vagentrl.errors import ConfigError, seen

T = TypeVar("T")


def read_settings(config: Mapping[str, Any], kind: type[T], owner: str) -> T:
    """Build a dataclass of settings from a config.

    Args:
        config: The config of the interaction; ``name`` is allowed everywhere.
        kind: A dataclass; its fields are the settings.
        owner: Class of the interaction, for errors.

    Raises:
        ConfigError: A setting is unknown, or its value has the wrong type.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"the config of {owner} is {seen(config)}; give a mapping of settings")
    known = [field.name for field in fields(kind)]  # pyright: ignore[reportArgumentType]
    given = {name: value for name, value in config.items() if name != "name"}
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        raise ConfigError(
            f"{owner} has no setting {', '.join(unknown)}; its settings are {', '.join(known)}"
        )
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind)
    try:
        parsed = parser.parse_object(given)
    except Exception as error:  # boundary: jsonargparse raises errors of several kinds
        raise ConfigError(f"a setting of {owner} does not fit: {error}") from error
    return kind(**{name: parsed[name] for name in known})
