"""The syntax of the agent's actions, and a strict parser for it.

An action is a tool call or a message to the customer, in one of three forms::

    find_customer(number="7304112")
    {"name": "find_customer", "arguments": {"number": "7304112"}}
    say[Please restart your phone.]

`say(text="…")` and its JSON form are read as messages too. A value in brackets is a word without
quotes (letters, digits, ``_ . -``) or a quoted string; in JSON it is a string, an integer or a
boolean. Nothing is evaluated, and no part of a reply is quoted in an error, because it may contain
anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST = 2000
"""Longest action that is read, in characters."""
MOST_BRACKETS = 8
"""Most brackets in a JSON action: the interpreter's stack must not decide how deep is too deep."""
SAY = "say"

_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,39}"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_MESSAGE = re.compile(r"say\s*\[(.*)\]", re.DOTALL)
_CALL = re.compile(rf"({_NAME})\s*\((.*)\)", re.DOTALL)
_ARGUMENT = re.compile(
    rf"""\s*({_NAME})\s*=\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_.\-]+))\s*(,|$)""", re.DOTALL
)


class CallError(Exception):
    """An action cannot be read; the text says why, and is shown to the agent."""


@dataclass(frozen=True)
class Call:
    """A tool's name and its arguments as text."""

    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)


def read_call(text: str) -> Call:
    """Read an action.

    Raises:
        CallError: When it has none of the three forms.
    """
    text = text.strip()
    if len(text) > LONGEST:
        raise CallError(f"an action has at most {LONGEST} characters")
    if _CONTROL.search(text):
        raise CallError("an action has no control characters")
    if text.startswith("{"):
        return _read_json(text)
    if message := _MESSAGE.fullmatch(text):
        return Call(SAY, {"text": message[1].strip()})
    if call := _CALL.fullmatch(text):
        return Call(call[1], _read_arguments(call[2]))
    raise CallError("write name(argument=value, ...) for a tool, or say[...] for the customer")


def write_call(name: str, arguments: Mapping[str, str]) -> str:
    """The call in brackets; quotes only where a value needs them."""
    if name == SAY:
        return f"say[{arguments['text']}]"
    written = (f"{key}={_quoted(value)}" for key, value in arguments.items())
    return f"{name}({', '.join(written)})"


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[A-Za-z0-9_.\-]+", value) else f'"{value}"'


def _read_arguments(text: str) -> dict[str, str]:
    arguments: dict[str, str] = {}
    position, more = 0, bool(text.strip())
    while more:
        found = _ARGUMENT.match(text, position)
        if found is None:
            raise CallError("an argument is name=value; quote a value that has spaces or signs")
        name, double, single, word, comma = found.groups()
        if name in arguments:
            raise CallError("an argument is given twice")
        arguments[name] = next(value for value in (double, single, word) if value is not None)
        position, more = found.end(), comma == ","
    if text[position:].strip():
        raise CallError("there is text after the last argument")
    return arguments


def _read_json(text: str) -> Call:
    if sum(map(text.count, "{[")) > MOST_BRACKETS:
        raise CallError("JSON is nested too deeply")
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except ValueError:
        raise CallError("this is not JSON") from None
    if not isinstance(value, dict) or not set(value) <= {"name", "arguments"}:
        raise CallError('JSON has the keys "name" and "arguments"')
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise CallError('"name" is the name of a tool')
    if not isinstance(arguments, dict):
        raise CallError('"arguments" is an object')
    if any(isinstance(one, str) and _CONTROL.search(one) for one in arguments.values()):
        raise CallError("an action has no control characters")  # JSON can escape them
    return Call(name, {key: _text(argument) for key, argument in arguments.items()})


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise CallError("a key is given twice")
    return dict(pairs)


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case _:
            raise CallError("a value is a string, an integer or a boolean")
