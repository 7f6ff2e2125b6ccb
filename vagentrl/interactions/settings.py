"""Typed settings of an interaction, read from its ``config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vagentrl.errors import ConfigError, seen

T = TypeVar("T")


def read_settings(config: Mapping[str, Any], kind: type[T], owner: str) -> T:
    """Build a dataclass of settings from a config.

    Values are taken as they are: jsonargparse would read the text "true" as a boolean here.

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
    hints = get_type_hints(kind)
    for name, value in given.items():
        if not _fits(value, hints[name]):
            raise ConfigError(
                f"the setting {name} of {owner} is {seen(value)}; give {_described(hints[name])}"
            )
    return kind(**given)


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    of = get_args(hint)
    match get_origin(hint):
        case None:
            return isinstance(value, hint)
        case origin if origin is Literal:
            return value in of
        case origin if origin in (Union, UnionType):
            return any(_fits(value, one) for one in of)
        case origin if origin is list:
            return isinstance(value, list) and all(_fits(one, of[0]) for one in value)
        case origin if origin is dict:
            pairs = value.items() if isinstance(value, dict) else [(None, None)]
            return all(_fits(key, of[0]) and _fits(one, of[1]) for key, one in pairs)
    raise TypeError(f"{hint} is no type of a setting")


def _described(hint: Any) -> str:
    """A type as text, such as ``list[str]`` or ``'share' or 'all'``."""
    of = get_args(hint)
    match get_origin(hint):
        case origin if origin is Literal:
            return " or ".join(repr(one) for one in of)
        case origin if origin in (Union, UnionType):
            return " or ".join(_described(one) for one in of)
        case None:
            return "null" if hint is NoneType else getattr(hint, "__name__", str(hint))
    return str(hint).replace("typing.", "")
