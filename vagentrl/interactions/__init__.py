"""Interactions as verl defined them: someone who answers the agent, in Python of the user's own."""

from importlib import import_module
from typing import Any

from vagentrl.interactions.base import BaseInteraction
from vagentrl.interactions.tasks import Task, Tasks

# The shipped interactions are imported on first use: some need libraries of an extra.
_SHIPPED = {
    "CodeInteraction": "vagentrl.interactions.code",
    "Gsm8kInteraction": "vagentrl.interactions.gsm8k",
    "MathInteraction": "vagentrl.interactions.mathematics",
    "ToolInteraction": "vagentrl.interactions.tools",
}

__all__ = ["BaseInteraction", "Task", "Tasks", *_SHIPPED]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _SHIPPED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_SHIPPED[name]), name)
