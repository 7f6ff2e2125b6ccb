"""Functions of the user's as tools: described by their signature, called with checked arguments."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, get_type_hints

from vagentrl.errors import ConfigError, seen
from vagentrl.interactions.tools.base import Tool, ToolError
from vagentrl.interactions.tools.threads import Threads

_MOST_ABANDONED = 100
"""Calls of a tool that hang at once; more are not started."""
_SECTION = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_ANY_SECTION = re.compile(r"^[A-Z][A-Za-z ]*:\s*$")
_ARGUMENT = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class FunctionTool(Tool):
    """A Python function.

    The type hints of its parameters become the JSON schema, its docstring the description, and the
    ``Args:`` section of a Google docstring the descriptions of the parameters. A coroutine function
    is awaited; any other runs in a thread.

    Args:
        function: A function, a bound method, or another callable with a name.
        name: Its name in a call; None takes the function's.

    Raises:
        ConfigError: The signature cannot be described, or pydantic is not installed.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        if find_spec("pydantic") is None:
            raise ConfigError("pydantic is not installed; run `pip install 'vagentrl[tools]'`")
        self._function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.description, arguments = read_docstring(inspect.getdoc(function) or "")
        self._model = _model_of(self.name, function, arguments)
        self.parameters = without_titles(self._model.model_json_schema(by_alias=True))
        call = function if inspect.isroutine(function) else type(function).__call__
        self._is_async = inspect.iscoroutinefunction(call)
        self._threads = Threads()

    def of(self, function: Callable[..., Any]) -> FunctionTool:
        """The same tool with another function of this signature, such as a method of an object."""
        tool = copy.copy(self)
        tool._function = function
        return tool

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Check the arguments and call the function."""
        values = self._checked(arguments)
        if self._is_async:
            return await self._function(**values)
        if self._threads.abandoned >= _MOST_ABANDONED:
            raise ToolError(f"{self.name} hangs and is not available")
        result = await self._threads.run(lambda: self._function(**values))
        return await result if inspect.isawaitable(result) else result

    def _checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        from pydantic import ValidationError  # pyright: ignore[reportMissingImports]

        try:
            # Strict, but for what JSON cannot express: a list becomes a tuple, a text a date.
            model = self._model.model_validate_json(json.dumps(arguments), strict=True)
        except ValidationError as error:
            raise ToolError("; ".join(_complaint(one) for one in error.errors()[:5])) from None
        except (ValueError, RecursionError) as error:
            raise ToolError(f"the arguments cannot be read: {error}") from None
        fields = type(model).model_fields
        return {fields[name].alias: getattr(model, name) for name in model.model_fields_set}


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description of a docstring in Google style, and those of its arguments."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if _ANY_SECTION.match(line)]
    description = "\n".join(lines[: starts[0]] if starts else lines).strip()
    arguments: dict[str, str] = {}
    section = next((i for i in starts if _SECTION.match(lines[i])), None)
    if section is None:
        return description, arguments
    indent, name = None, ""
    for line in lines[section + 1 :]:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            break
        indent = depth if indent is None else indent
        found = _ARGUMENT.match(line.strip()) if depth == indent else None
        if found:
            name = found[1].lstrip("*")
            arguments[name] = found[2].strip()
        elif name:
            arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return description, arguments


def _model_of(name: str, function: Callable[..., Any], described: Mapping[str, str]) -> Any:
    """A pydantic model of the parameters."""
    from pydantic import ConfigDict, Field, create_model  # pyright: ignore[reportMissingImports]
    from pydantic.errors import PydanticUserError  # pyright: ignore[reportMissingImports]

    try:
        parameters = inspect.signature(function).parameters.values()
        plain = inspect.isroutine(function)
        hints = get_type_hints(function if plain else type(function).__call__, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"the signature of the tool {name} cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"the tool {name} takes {parameter}; an agent gives its arguments by name, so give "
                "each a name of its own"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        field = Field(
            default, alias=parameter.name, description=described.get(parameter.name) or None
        )
        # Names that pydantic keeps for itself, such as `schema`, are possible as aliases.
        fields[f"argument_{number}"] = (hints.get(parameter.name, Any), field)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        model = create_model(name, __config__=config, **fields)
        model.model_json_schema()
    except (PydanticUserError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(
            f"a type of the tool {name} has no JSON schema ({first}); use str, int, float, bool, "
            "Literal, Optional, list, dict, or a dataclass of these"
        ) from error
    return model


def without_titles(schema: Any) -> Any:
    """A JSON schema without its titles, which pydantic makes of names."""
    if isinstance(schema, list):
        return [without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {
        key: {name: without_titles(one) for name, one in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
    return tidied


def _complaint(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    match error["type"]:
        case "missing":
            return f"the argument {place} is missing"
        case "extra_forbidden":
            return f"there is no argument {place[:100]}"
        case _:
            return f"the argument {place} is {seen(error['input'])}: {error['msg']}"
