"""Reading the calls in a reply, in the format of Hermes and Qwen models."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_WANTED = 'write {"name": …, "arguments": {…}} between the tags of a call'
_MOST_DIGITS = 1000


@dataclass(frozen=True)
class Call:
    """A call that the agent wants."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Malformed:
    """A call that cannot be read, and why."""

    problem: str


def after_thinking(reply: str) -> str:
    """A reply without its thoughts: what stands in ``<think>`` is neither a call nor an answer."""
    return reply.rpartition("</think>")[2]


def read_calls(reply: str, most: int, longest: int) -> list[Call | Malformed]:
    """The calls in a reply, in order.

    Tags inside a string of a call are part of the string.

    Args:
        reply: What the agent wrote, without its thoughts.
        most: Number of calls that are read. One more, if there is one, is returned unread.
        longest: Characters of the longest call that is read.
    """
    calls: list[Call | Malformed] = []
    at = reply.find(OPENING)
    while at >= 0:
        if len(calls) == most:
            calls.append(Malformed(f"only {most} calls can be made in a reply; the rest were not"))
            break
        start = at + len(OPENING)
        call, end = _read_call(reply[start : start + longest + 1], longest)
        calls.append(call)
        end = _skip(reply, start) if end is None else start + end
        at = reply.find(OPENING, end)
    return calls


def _read_call(text: str, longest: int) -> tuple[Call | Malformed, int | None]:
    """Read one call; also where it ends, None if that cannot be told."""
    body = text.lstrip()
    indent = len(text) - len(body)
    try:
        value, end = _DECODER.raw_decode(body)
    except RecursionError:
        return Malformed("the JSON is nested too deeply"), None
    except ValueError as error:
        if len(text) > longest:
            return Malformed(f"the call has more than {longest} characters"), None
        return Malformed(f"the call is not valid JSON ({_reason(error)}); {_WANTED}"), None
    rest = body[end:].lstrip()
    if not rest.startswith(CLOSING):
        return Malformed(f"the call is not closed; {_WANTED}"), None
    end = indent + len(body) - len(rest) + len(CLOSING)
    match value:
        case {"name": str(name), "arguments": dict(arguments)} if len(value) == 2:
            return Call(name, arguments), end
        case {"name": str(name)} if len(value) == 1:
            return Call(name, {}), end
    return Malformed(f"a call is an object with a name and arguments; {_WANTED}"), end


def _skip(reply: str, start: int) -> int:
    """Where to look for the next call after one that cannot be read."""
    closing, opening = reply.find(CLOSING, start), reply.find(OPENING, start)
    if closing < 0 or 0 <= opening < closing:
        return start
    return closing + len(CLOSING)


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return str(error)[:200]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name[:100]!r} is given twice")
        values[name] = value
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:30]} is too large")
    return value


def _bounded(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"the number {text[:30]}… is too large")
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_once,
    parse_constant=_refuse_constant,
    parse_float=_finite,
    parse_int=_bounded,
)
