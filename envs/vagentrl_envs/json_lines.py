"""Records from JSON and JSON Lines files, with errors that name the line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagentrl.errors import ConfigError, seen


@dataclass(frozen=True)
class Record:
    """A JSON object of a file.

    Attributes:
        fields: The object.
        place: Where it stands, for error messages.
    """

    fields: dict[str, Any]
    place: str

    def error(self, problem: str) -> ConfigError:
        """An error that says where the problem is."""
        return ConfigError(f"{self.place}: {problem}")

    def text(self, *names: str) -> str | None:
        """The first of these fields that is there, as text; None if there is none.

        Raises:
            ConfigError: If the field is neither a string nor a number.
        """
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if not _is_text(value):
                raise self.error(f"{name!r} is {seen(value)}; give a string")
            return str(value)
        return None

    def texts(self, name: str) -> tuple[str, ...]:
        """A field that is a text or a list of texts; empty if it is not there.

        Raises:
            ConfigError: If the field is anything else than strings and numbers.
        """
        value = self.fields.get(name)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        if not all(map(_is_text, values)):
            raise self.error(f"{name!r} is {seen(value)}; give a string or a list of strings")
        return tuple(map(str, values))


def _is_text(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, which may be compressed by gzip if its name ends in ``.gz``.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        stored = path.read_bytes()
        if path.suffix == ".gz":
            stored = gzip.decompress(stored)
        return stored.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}") from error


def read_records(path: Path) -> Iterator[Record]:
    """The objects of a JSON Lines file, or of a JSON file that is one list of objects.

    Empty lines are skipped.

    Raises:
        ConfigError: If the file cannot be read, or a line holds no JSON object.
    """
    text = read_text(path)
    if text.lstrip().startswith("["):
        for number, value in enumerate(_parsed(text, str(path)), 1):
            yield _record(value, f"{path}, record {number}")
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{path}, line {number}"
            yield _record(_parsed(line, place), place)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{place} is not JSON: {error}") from error


def _record(value: Any, place: str) -> Record:
    if not isinstance(value, dict):
        raise ConfigError(f"{place} is {seen(value)}; give a JSON object")
    return Record(value, place)
