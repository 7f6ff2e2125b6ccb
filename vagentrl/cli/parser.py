"""What the command line says to wrong settings: which key, what was wanted, what may be meant.

jsonargparse names the key too, but among its usage, every type that it tried and the values of all
other keys. `explain` keeps what a person needs, and leaves a message that it does not recognise.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import getdoc, isabstract, isclass, signature
from pathlib import Path
from pydoc import locate
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, auto_cli

from vagentrl.cli.renames import RENAMED_SETTINGS, find_old_path, new_name

CONFIG_HELP = "a YAML file with settings, or the name of a recipe (see `vagentrl recipes`)"


class Parser(ArgumentParser):
    """Reports a mistake in a line or two, and guesses what was meant."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # an abbreviation is a typing error that happens to work
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def validate(self, *args: Any, **kwargs: Any) -> None:
        """Name the key that may be meant: a nested class has a parser of its own, and only that
        one knows its keys."""
        try:
            super().validate(*args, **kwargs)
        except KeyError as error:
            message = re.sub(
                r"Group '([\w.]+)' does not accept option '", r"Option '\1.", str(error.args[0])
            )
            unknown = re.search(r"option '([\w.]+)'[^(]*$", message, re.IGNORECASE)
            if unknown is not None:
                error.args = (message + _guess(unknown[1], _keys(self)),)
            raise

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # an attempt that may fail: one of several types, for instance
            super().error(message, ex)
        unknown = re.match(r"unrecognized arguments: --([\w.]+)", message)
        if unknown is not None:
            message = f"option '{unknown[1]}'{_guess(unknown[1], _keys(self))}"
        print(f"vagentrl: {explain(message)}", file=sys.stderr)
        raise SystemExit(2)


def run_function(
    function: Callable[..., Any],
    command: str,
    arguments: Sequence[str],
    *,
    as_positional: bool = False,
) -> None:
    """Run a command whose options are a function's arguments and whose help is its docstring.

    Args:
        function: What the command does.
        command: Its name.
        arguments: What follows the name.
        as_positional: Take arguments without a default by their place, not as options.
    """
    required = [
        p.name.upper() for p in signature(function).parameters.values() if p.default is p.empty
    ]
    auto_cli(
        function,
        args=list(arguments),
        as_positional=as_positional,
        parser_class=Parser,
        config_help=CONFIG_HELP,
        prog=f"vagentrl {command}",
        usage=" ".join(["vagentrl", command, *required * as_positional, "[--KEY VALUE ...]"]),
        description=(getdoc(function) or "").partition("\nArgs:")[0].strip(),
    )


def explain(message: str) -> str:
    """Shorten an error message of jsonargparse to the first cause in it that is recognised."""
    if (old := find_old_path(message)) is not None and (new := new_name(old)) is not None:
        return f"{_place(message)}{old} is now called {new}"
    found = [
        (match.start(), say, match)
        for pattern, say in _COMPLAINTS.items()
        if (match := re.search(pattern, message, re.IGNORECASE))
    ]
    if not found:
        return message
    start, say, match = min(found, key=lambda item: item[0])
    return say(_key(message[:start]), match)


def _key(message: str) -> str:
    """The key that a message is about, from the outermost to the innermost parser."""
    return ".init_args.".join(re.findall(r'Parser key "([\w.]+)"', message))


def _place(message: str) -> str:
    key = _key(message)
    return f"{key}: " if key else ""


def _unknown_key(place: str, match: re.Match[str]) -> str:
    key = f"{place}.init_args.{match[1]}" if place else match[1]
    if (new := RENAMED_SETTINGS.get(match[1].rpartition(".")[2])) is not None:
        return f"there is no setting {key}; it is now called {new}"
    return f"there is no setting {key}{match[2] or ''}"


def _missing_settings(place: str, match: re.Match[str]) -> str:
    kind = re.search(r"class_path='([\w.]+)'", match.string)
    named = f"{place} is {kind[1]}, which" if kind else place or "the command"
    options = " and ".join(f"--{f'{place}.' if place else ''}{n}" for n in match[1].split(", "))
    return f"{named} needs settings without a default; give {options}"


def _unknown_argument(place: str, match: re.Match[str]) -> str:
    argument = match[1]
    if Path(argument).suffix in (".yaml", ".yml"):
        return f"{argument} stands alone; did you mean --config {argument}?"
    if argument.startswith("-"):
        return f"there is no option {argument}; settings start with two dashes"
    return f"{argument} stands alone; settings are given as --key value"


def _wrong_value(place: str, match: re.Match[str]) -> str:
    value = match[2].split(". Got value:")[0]
    return f"{place} is {value!r}, but should be {_readable(match[1])}"


def _none_of_the_types(place: str, match: re.Match[str]) -> str:
    value = match[2].split(". Got value:")[0]
    return f"{place} is {value!r}, but should be one of: {_readable(match[1])}"


def _out_of_bounds(place: str, match: re.Match[str]) -> str:
    return f"{place} is {match[1]}, but should be {match[2].replace('v', '')}"


def _no_path(place: str, match: re.Match[str]) -> str:
    if (new := new_name(match[1])) is not None:
        return f"{place}: {match[1]} is now called {new}"
    known = _class_names()
    if match[1] in known:
        return f"{place} is {match[1]}, which is no class for this setting; see --help"
    guess = _guess(match[1], known)
    return f"{place} is {match[1]!r}, but should be the import path of a class{guess}"


def _no_class_at_all(place: str, match: re.Match[str]) -> str:
    return f"{place} is {match[1]}, but should be the import path of a class, or have a class_path"


def _class_names() -> set[str]:
    """Names of the classes that vagentrl has loaded: short names need no import path."""
    modules = [vars(module) for name, module in sys.modules.items() if name.startswith("vagentrl")]
    return {
        thing.__name__
        for names in modules
        for thing in names.values()
        if isclass(thing) and thing.__module__.startswith("vagentrl")
    }


def _wrong_class(place: str, match: re.Match[str]) -> str:
    name, base = match[1] or match[3], match[2] or match[4]
    return f"{place} is {name}, but should be a subclass of {base}"


def _not_a_class(place: str, match: re.Match[str]) -> str:
    return f"{place} is {match[2].strip()}, but should be a subclass of {match[1]}"


def _abstract_class(place: str, match: re.Match[str]) -> str:
    kind: Any = locate(match[1])
    lacks = f": it lacks {', '.join(sorted(kind.__abstractmethods__))}" if isabstract(kind) else ""
    return f"{place} is {match[1]}, which is abstract{lacks}; name a class that is derived from it"


def _neither_class_nor_function(place: str, match: re.Match[str]) -> str:
    module = re.match(r"<module '([\w.]+)'", match[1])
    if module is None:
        return f"{place} is {match[2]}, which is neither a class nor a function"
    wanted = re.search(r"Callable\[\[\], ([\w.]+)\] expects", match.string)
    base = locate(wanted[1]) if wanted else None
    classes = [
        name
        for name, thing in vars(importlib.import_module(module[1])).items()
        if isclass(thing) and issubclass(thing, base if isclass(base) else object)
        if thing.__module__ == module[1]
    ]
    return f"{place} is the module {module[1]}; name a class in it: {', '.join(classes) or 'none'}"


def _unannotated_function(place: str, match: re.Match[str]) -> str:
    return (
        f"{place} is {match[1]}, a function that does not say what it returns; name a class, or "
        f"write `-> {match[2]}` behind its arguments"
    )


def _missing_module(place: str, match: re.Match[str]) -> str:
    return (
        f"{place}: there is no module {match[1]}; for a file in this folder set PYTHONPATH=., for "
        "a package install it"
    )


def _missing_class(place: str, match: re.Match[str]) -> str:
    module, name = match[1] or match[3], match[2] or match[4]
    guess = _guess(name, dir(importlib.import_module(module)))
    return f"{place}: there is no {name!r} in {module}{guess}"


def _wrong_keys_of_a_class(place: str, match: re.Match[str]) -> str:
    return (
        f"{place} is {match[1]}, but should have the key class_path and, for settings of that "
        "class, init_args"
    )


_COMPLAINTS: dict[str, Callable[[str, re.Match[str]], str]] = {
    r"option '([\w.]+)'(?: is not accepted)?( \(did you mean .*?\))?": _unknown_key,
    r"unrecognized arguments: (\S+)": _unknown_argument,
    r"expects a function or a callable class: the following arguments are required: "
    r"([\w, ]+)": _missing_settings,
    r"Dict must include a class_path and optionally init_args, but got (\{.+?\})(?=\. Got|\n|$)": (
        _wrong_keys_of_a_class
    ),
    r"Expected an import path or a subclass spec, but got (.+?)\. Got value": _no_class_at_all,
    r"Unexpected import object (.+?)\. Got value: (.+)": _neither_class_nor_function,
    r"Expected '([\w.]+)' to be a function that returns <class '(\w+)'>": _unannotated_function,
    r"No module named '([\w.]+)'": _missing_module,
    r"Expected an? (?!path|dot import|instantiatable)(.+?)\. Got value: (.+)": _wrong_value,
    # unless one of the types was a class, whose own complaint says more
    r"Subtypes: \[(.+)\]\n(?:(?!.*(?:given class_path|Parser key|Import path|is abstract)).*\n)*?"
    r"\s*Given value: (.+)": _none_of_the_types,
    r"Import path does not correspond to a subclass of (\w+)\n(?:.*\n)*?\s*Given value: (.+)": (
        _not_a_class
    ),
    r"Expected an instantiatable class, but ([\w.]+) is abstract$": _abstract_class,
    r"Expected an instantiatable class, but(?:.*\n)*?.*(?:Given|Got) value: (.+)": _abstract_class,
    r"Not of type \w+: (.+) does not conform to restriction (.+)": _out_of_bounds,
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
    return (action.dest for action in parser._actions)
