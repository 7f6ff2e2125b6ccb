"""What the command line says to wrong settings: which key, what was wanted, what may be meant.

jsonargparse names the key too, but among its usage, every type that it tried and the values of all
other keys. `explain` keeps what a person needs; what it does not recognise it leaves as it is.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser


class Parser(LightningArgumentParser):
    """Complains in a line or two, and guesses what was meant."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # an abbreviation is a typing error that happens to work
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def validate(self, *args: Any, **kwargs: Any) -> None:
        """A nested class has a parser of its own; only that one knows which keys there are."""
        try:
            super().validate(*args, **kwargs)
        except KeyError as error:
            unknown = re.search(r"option '([\w.]+)'[^(]*$", str(error.args[0]), re.IGNORECASE)
            if unknown is not None:
                error.args = (error.args[0] + _guess(unknown[1], _keys(self)),)
            raise

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # an attempt that may fail: one of several types, for instance
            super().error(message, ex)
        unknown = re.match(r"unrecognized arguments: --([\w.]+)", message)
        if unknown is not None:
            message = f"option '{unknown[1]}'{_guess(unknown[1], _keys(self))}"
        print(f"vagentrl: {explain(message)}", file=sys.stderr)
        raise SystemExit(2)


def explain(message: str) -> str:
    """The gist of a complaint of jsonargparse: of what it says, the first thing that is known."""
    found = [
        (match.start(), say, match)
        for pattern, say in _COMPLAINTS.items()
        if (match := re.search(pattern, message, re.IGNORECASE))
    ]
    if not found:
        return message
    start, say, match = min(found, key=lambda item: item[0])
    keys = re.findall(r'Parser key "([\w.]+)"', message[:start])
    return say(".init_args.".join(keys), match)


def _unknown_key(place: str, match: re.Match[str]) -> str:
    key = f"{place}.init_args.{match[1]}" if place else match[1]
    return f"there is no setting {key}{match[2] or ''}"


def _wrong_value(place: str, match: re.Match[str]) -> str:
    value = match[2].split(". Got value:")[0]
    return f"{place} is {value!r}, but should be {_readable(match[1])}"


def _none_of_the_types(place: str, match: re.Match[str]) -> str:
    value = match[2].split(". Got value:")[0]
    return f"{place} is {value!r}, but should be one of: {_readable(match[1])}"


def _no_path(place: str, match: re.Match[str]) -> str:
    return f"{place} is {match[1]!r}, but should be the import path of a class"


def _wrong_class(place: str, match: re.Match[str]) -> str:
    name, base = match[1] or match[3], match[2] or match[4]
    return f"{place} is {name}, but should be a subclass of {base}"


def _missing_class(place: str, match: re.Match[str]) -> str:
    module, name = match[1] or match[3], match[2] or match[4]
    guess = _guess(name, dir(importlib.import_module(module)))
    return f"{place}: there is no {name!r} in {module}{guess}"


_COMPLAINTS: dict[str, Callable[[str, re.Match[str]], str]] = {
    r"option '([\w.]+)'(?: is not accepted)?( \(did you mean .*?\))?": _unknown_key,
    r"Expected an? (?!path|dot import)(.+?)\. Got value: (.+)": _wrong_value,
    # unless one of the types was a class, whose own complaint says more
    r"Subtypes: \[(.+)\]\n(?:(?!.*(?:given class_path|Parser key)).*\n)*?\s*Given value: (.+)": (
        _none_of_the_types
    ),
    r"Expected a dot import path string: (.+)": _no_path,
    r"Expected '([\w.]+)' to be a subclass of <class '(\w+)'>"
    r"|Import path ([\w.]+) does not correspond to a subclass of (\w+)": _wrong_class,
    r"module '([\w.]+)' has no attribute '(\w+)'|([\w.]+) has no '(\w+)'": _missing_class,
}


def _readable(types: str) -> str:
    literals = re.compile(r"typing\.Literal\[(.+?)\]")
    types = literals.sub(lambda match: match[1].replace(", ", " or "), types)
    types = re.sub(r"<class '(.+?)'>", r"\1", types).replace("NoneType", "null")
    return re.sub(r"[\w.]*\.(\w+)", r"\1", types)


def _guess(unknown: str, known: Iterable[str]) -> str:
    """The known name that an unknown one resembles, up to its first wrong part."""
    known, parts = list(known), unknown.split(".")
    for depth in range(1, len(parts) + 1):
        prefix = ".".join(parts[:depth])
        options = {".".join(name.split(".")[:depth]) for name in known}
        if prefix not in options:
            close = difflib.get_close_matches(prefix, options, n=1)
            return f" (did you mean {close[0]}?)" if close else ""
    return ""


def _keys(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _keys(command)
        else:
            yield action.dest
