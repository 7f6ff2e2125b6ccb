"""A copy of what training changes, to go back to."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from vagentrl.modules.agent import AgentModule


class Snapshot:
    """The trained weights and the optimizer's state after an iteration, in main memory.

    With AdamW that is three numbers for each trained weight.

    Args:
        agent: The agent, on a strategy that holds all of it in every process.
    """

    def __init__(self, agent: AgentModule) -> None:
        self.iteration = agent.iteration
        self._weights = {
            name: _copy(weight.detach(), "cpu")
            for name, weight in agent.named_parameters()
            if weight.requires_grad
        }
        self._moments = tree_map(lambda x: _copy(x, "cpu"), _optimizer(agent).state_dict()["state"])

    @torch.no_grad()
    def restore(self, agent: AgentModule) -> None:
        """Put everything back in place; the snapshot can be used again."""
        weights = dict(agent.named_parameters())
        for name, kept in self._weights.items():
            weights[name].copy_(kept)
        optimizer = _optimizer(agent)
        # The optimizer would go on to change what it is given in place.
        moments = tree_map(_copy, self._moments)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _optimizer(agent: AgentModule) -> torch.optim.Optimizer:
    (optimizer,) = agent.trainer.optimizers
    return optimizer


def _copy(value: Any, device: str | None = None) -> Any:
    return value.to(device or value.device, copy=True) if isinstance(value, torch.Tensor) else value
