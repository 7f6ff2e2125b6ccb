"""What every command does first: load the plug-ins, silence what nobody can act upon."""

from __future__ import annotations

from importlib.metadata import entry_points

from vagentrl import chat, engines
from vagentrl.noise import silence_noise

__all__ = ["load_plugins", "silence_noise"]


def load_plugins() -> None:
    """Import the classes that there are to choose from, so that short names find them."""
    for package in (engines, chat):
        for name in package.__all__:
            getattr(package, name)
    for plugin in entry_points(group="vagentrl.plugins"):
        plugin.load()
