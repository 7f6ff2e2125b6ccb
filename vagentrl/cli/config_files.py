"""The files that ``--config`` names: found by path or by a recipe's name, and read for mistakes.

What YAML itself lets pass is refused here, with the file and the line: a key that is given twice
(the second silently wins), an empty file, a list where settings belong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from vagentrl.cli.recipes import find_config
from vagentrl.errors import ConfigError

_OPTIONS = ("--config", "-c")


def resolve_configs(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a path in place of every recipe's name; raises on a file with mistakes.

    Args:
        arguments: What follows the command.
    """
    resolved: list[str] = []
    for argument in arguments:
        option, separator, name = argument.partition("=")
        if separator and option in _OPTIONS:
            resolved.append(f"{option}={_checked(name)}")
        elif resolved and resolved[-1] in _OPTIONS:
            resolved.append(str(_checked(argument)))
        else:
            resolved.append(argument)
    return resolved


def _checked(name: str) -> Path:
    path = find_config(name)
    _check(path)
    return path


def _check(path: Path) -> None:
    try:
        document = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config: {path} is not a text file ({error.reason})") from error
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read ({error.strerror})") from error
    except yaml.MarkedYAMLError as error:
        place = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigError(f"--config: {path}{place}: {error.problem}; it is not YAML") from error
    if document is None:
        raise ConfigError(
            f"--config: {path} is empty; copy a recipe (vagentrl recipes NAME > {path.name})"
        )
    if not isinstance(document, yaml.MappingNode):
        raise ConfigError(
            f"--config: {path} holds no settings: it should start with a key such as `model:`"
        )
    for mapping in _mappings(document):
        _check_keys(mapping, path)


def _mappings(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    """All mappings at and below a node."""
    if isinstance(node, yaml.MappingNode):
        yield node
        for _, value in node.value:
            yield from _mappings(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _mappings(item)


def _check_keys(mapping: yaml.MappingNode, path: Path) -> None:
    lines: dict[str, int] = {}
    for key, value in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        if key.value in lines:
            raise ConfigError(
                f"--config: {path}, line {line}: {key.value!r} is given twice, first in line "
                f"{lines[key.value]}; the second would replace all of the first: join them"
            )
        if key.value == "class_path" and not isinstance(value, yaml.ScalarNode):
            raise ConfigError(
                f"--config: {path}, line {line}: class_path should be the import path of one class"
            )
        lines[key.value] = line
