"""Clipping gradients, and skipping the steps whose gradient is not finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch

from vagentrl.errors import VagentError
from vagentrl.models.sharded import full

log = logging.getLogger(__name__)

SKIPPED_AT_MOST = 8
"""Skipped steps in a row that end the run. With float16 the loss scale needs a few to settle."""


def clip_gradients(optimizer: torch.optim.Optimizer, limit: float) -> dict[str, float]:
    """Clip the gradient of each parameter group to a norm; returns the norms before that."""
    return {
        f"{group['name']}_grad_norm": float(
            full(torch.nn.utils.clip_grad_norm_(group["params"], limit))
        )
        for group in optimizer.param_groups
    }


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Remove all gradients, so that the optimizer's next step changes nothing."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


class FiniteSteps:
    """Tells which steps can be taken, and ends a run in which none can."""

    def __init__(self) -> None:
        self._skipped = 0  # in a row

    def check(self, norms: Mapping[str, float], iteration: int) -> bool:
        """Whether all gradient norms of a step are finite.

        Raises:
            VagentError: When they were not in `SKIPPED_AT_MOST` steps in a row.
        """
        if all(math.isfinite(norm) for norm in norms.values()):
            self._skipped = 0
            return True
        self._skipped += 1
        seen = ", ".join(f"{name} {norm}" for name, norm in norms.items())
        log.warning(
            "iteration %d: a step is skipped because its gradient is not finite (%s)",
            iteration,
            seen,
        )
        if self._skipped == SKIPPED_AT_MOST:
            raise VagentError(
                f"{self._skipped} steps in a row had a gradient that is not finite ({seen}), so "
                "nothing is learned; see which logged train/ and rollout/ scalars are not finite "
                "either, then resume from the last checkpoint with lower learning rates"
            )
        return False
