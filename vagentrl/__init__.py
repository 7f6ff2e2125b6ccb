"""vagentrl: reinforcement learning for agents that see, speak and act over many turns."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AgentModule": "vagentrl.modules.agent",
    "Engine": "vagentrl.engines.base",
    "Environment": "vagentrl.environment",
    "Mixture": "vagentrl.mixture",
    "Observation": "vagentrl.types",
    "Policy": "vagentrl.policy",
    "Reply": "vagentrl.types",
    "RolloutDataModule": "vagentrl.datamodule",
    "Sampling": "vagentrl.engines.base",
    "State": "vagentrl.types",
    "StepResult": "vagentrl.types",
    "Trajectory": "vagentrl.types",
    "Turn": "vagentrl.types",
    "VagentError": "vagentrl.errors",
    "export_policy": "vagentrl.policy",
    "load_policy": "vagentrl.policy",
    "make_trainer": "vagentrl.trainer",
    "resume": "vagentrl.trainer",
}

__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # Names are imported on first use, so that `import vagentrl` does not load torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'vagentrl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
