"""Engines, which sample the policy's replies.

Each engine is imported on first use, because some have heavy dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vagentrl.engines.replicated import ReplicatedEngine
    from vagentrl.engines.scripted import ScriptedEngine
    from vagentrl.engines.transformers import TransformersEngine
    from vagentrl.engines.vllm import VLLMEngine
    from vagentrl.engines.vllm.fleet import VLLMFleet
    from vagentrl.engines.vllm.server import VLLMServerEngine

__all__ = [
    "ReplicatedEngine",
    "ScriptedEngine",
    "TransformersEngine",
    "VLLMEngine",
    "VLLMFleet",
    "VLLMServerEngine",
]

_MODULES = {
    "ReplicatedEngine": "replicated",
    "ScriptedEngine": "scripted",
    "TransformersEngine": "transformers",
    "VLLMEngine": "vllm",
    "VLLMFleet": "vllm.fleet",
    "VLLMServerEngine": "vllm.server",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"vagentrl.engines has no {name!r}; it has {sorted(_MODULES)}")
    return getattr(import_module(f"vagentrl.engines.{_MODULES[name]}"), name)
