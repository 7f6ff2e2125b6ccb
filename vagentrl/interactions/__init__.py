"""Interactions as verl defined them: someone who answers the agent, in Python of the user's own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vagentrl.interactions.base import BaseInteraction
from vagentrl.interactions.problem import Problem, ProblemInteraction
from vagentrl.interactions.settings import read_settings
from vagentrl.interactions.tasks import Task, Tasks
from vagentrl.interactions.verl_shim import install_verl_shim

# Imported on first use: some of the shipped interactions need the libraries of an extra.
_HOMES = {
    "CodeInteraction": "vagentrl.interactions.code",
    "Gsm8kInteraction": "vagentrl.interactions.gsm8k",
    "InteractionEnvironment": "vagentrl.interactions.environment",
    "Lifecycle": "vagentrl.interactions.environment",
    "MathInteraction": "vagentrl.interactions.mathematics",
    "ToolInteraction": "vagentrl.interactions.tools",
    "initialize_interactions_from_config": "vagentrl.interactions.registry",
}

__all__ = [
    "BaseInteraction",
    "Problem",
    "ProblemInteraction",
    "Task",
    "Tasks",
    "install_verl_shim",
    "read_settings",
    *_HOMES,
]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vagentrl.interactions' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
