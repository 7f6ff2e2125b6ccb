"""Engines: they sample the replies.

Each is imported when it is first named: some are heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vagentrl.engines.replicated import ReplicatedEngine
    from vagentrl.engines.scripted import ScriptedEngine
    from vagentrl.engines.transformers import TransformersEngine
    from vagentrl.engines.vllm import VLLMEngine
    from vagentrl.engines.vllm.server import VLLMServerEngine

__all__ = [
    "ReplicatedEngine",
    "ScriptedEngine",
    "TransformersEngine",
    "VLLMEngine",
    "VLLMServerEngine",
]

_HOME = {
    "ReplicatedEngine": "replicated",
    "ScriptedEngine": "scripted",
    "TransformersEngine": "transformers",
    "VLLMEngine": "vllm",
    "VLLMServerEngine": "vllm.server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"vagentrl.engines has no {name!r}; it has {sorted(_HOME)}")
    return getattr(import_module(f"vagentrl.engines.{_HOME[name]}"), name)
