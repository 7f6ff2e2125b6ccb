"""Plug-ins: modules of installed packages whose classes can be named in a configuration."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from inspect import isabstract
from types import ModuleType
from typing import TypeVar

from vagentrl import chat, engines, interactions

T = TypeVar("T")

GROUP = "vagentrl.plugins"


@dataclass(frozen=True)
class Plugin:
    """A module that an installed package names as a plug-in.

    Attributes:
        name: What the package calls it.
        path: The module's dotted path.
        module: The imported module; None if it cannot be imported.
        problem: Why it cannot be imported.
    """

    name: str
    path: str
    module: ModuleType | None
    problem: str = ""

    def classes(self, kind: type[T]) -> Iterator[type[T]]:
        """The classes of one kind that the plug-in defines itself, without the abstract ones."""
        defined: set[type] = set()
        # A list, because whoever uses a class may import something into the module.
        for thing in list(vars(self.module).values()) if self.module else ():
            if not isinstance(thing, type) or not issubclass(thing, kind) or isabstract(thing):
                continue
            if f"{thing.__module__}.".startswith(f"{self.path}.") and thing not in defined:
                defined.add(thing)
                yield thing


def find_plugins() -> Iterator[Plugin]:
    """Import all plug-ins, in the order of their paths."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.module):
        try:
            yield Plugin(point.name, point.module, importlib.import_module(point.module))
        except Exception as error:  # anybody's code, which must not stop what does not need it
            yield Plugin(point.name, point.module, None, f"{type(error).__name__}: {error}")


def load_plugins(*, with_engines: bool = True) -> None:
    """Import the classes that there are to choose from, so that short names find them.

    Args:
        with_engines: Import the engines too, which load torch.
    """
    for package in (*([engines] if with_engines else []), chat, interactions):
        for name in package.__all__:
            getattr(package, name)
    for plugin in find_plugins():
        if plugin.module is None:
            print(
                f"vagentrl: the plug-in {plugin.path} cannot be imported ({plugin.problem}), so "
                "its classes are unknown; install the package that brings it again",
                file=sys.stderr,
            )
