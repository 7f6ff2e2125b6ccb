"""The tools of an interaction, from what its config names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib import import_module
from types import MethodType
from typing import Any

from vagentrl.errors import ConfigError, seen
from vagentrl.interactions.tools.base import Tool
from vagentrl.interactions.tools.functions import FunctionTool


def named_object(path: str) -> Any:
    """The object of a dotted path, such as ``my.module.search``.

    Raises:
        ConfigError: There is no such module, or it has no such name.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{path!r} cannot be imported ({error}); give the dotted path of a module and a name"
        ) from error


@dataclass(frozen=True)
class ToolClass:
    """A class whose public methods are tools; every conversation has an object of its own.

    Attributes:
        kind: The class.
        tools: Its methods as tools that lack their object.
    """

    kind: type
    tools: tuple[FunctionTool, ...]

    def made(self, row: Mapping[str, Any], closing: ExitStack) -> list[FunctionTool]:
        """The tools of a new object.

        Args:
            row: The row's ``interaction_kwargs``; the constructor gets those that it names.
            closing: Leaves the object at the end, if it is a context manager.
        """
        wanted = inspect.signature(self.kind).parameters
        made = self.kind(**{name: row[name] for name in wanted if name in row})
        if isinstance(made, AbstractContextManager):
            closing.enter_context(made)
        return [tool.of(getattr(made, tool.name)) for tool in self.tools]


def tool_class(kind: type) -> ToolClass:
    """Describe a class whose methods are tools.

    Raises:
        ConfigError: It has no public method, or one cannot be described.
    """
    methods = inspect.getmembers(kind, inspect.isfunction)
    # A method is described as one of any object, since there is none of the class yet.
    tools = tuple(
        FunctionTool(MethodType(method, object()), name)
        for name, method in methods
        if not name.startswith("_")
    )
    if not tools:
        raise ConfigError(f"{kind.__name__} is named as a tool, but has no public method")
    return ToolClass(kind, tools)


class Toolset:
    """Tools by name.

    Args:
        entries: Dotted paths, functions, classes or tools.
        others: Further tools, of MCP servers.

    Raises:
        ConfigError: An entry is none of these, there is none, or two have the same name.
    """

    def __init__(self, entries: Sequence[Any], others: Iterable[Tool] = ()) -> None:
        self.shared: list[Tool] = []
        self.classes: list[ToolClass] = []
        for entry in entries:
            self._add(named_object(entry) if isinstance(entry, str) else entry)
        self.shared += others
        if not self.all:
            raise ConfigError("there are no tools; name functions in tools, or servers in mcp")
        names = [tool.name for tool in self.all]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"two tools are named {', '.join(twice)}; rename one, or give an MCP server a "
                "prefix"
            )

    @property
    def all(self) -> list[Tool]:
        """Every tool, in the order of the config; those of classes lack their objects."""
        return [*self.shared, *(tool for one in self.classes for tool in one.tools)]

    def of_conversation(self, row: Mapping[str, Any], closing: ExitStack) -> dict[str, Tool]:
        """The tools of a new conversation; the arguments are those of `ToolClass.made`.

        Without classes, no code of the user's is run.
        """
        own = [tool for one in self.classes for tool in one.made(row, closing)]
        return {tool.name: tool for tool in [*self.shared, *own]}

    def _add(self, entry: Any) -> None:
        if isinstance(entry, Tool):
            self.shared.append(entry)
        elif inspect.isclass(entry):
            self.classes.append(tool_class(entry))
        elif isinstance(entry, Callable):
            self.shared.append(FunctionTool(entry))
        else:
            raise ConfigError(
                f"a tool is {seen(entry)}; give the dotted path of a function or a class"
            )
