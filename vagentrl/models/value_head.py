"""One number per state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vagentrl.models.forward import at_least_float32


class ValueHead(nn.Linear):
    """Linear map from a hidden state to its value; starts at 0 everywhere."""

    def __init__(self, hidden_size: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(hidden_size, 1, dtype=dtype)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """``(B, T, D)`` states to ``(B, T)`` values, in float32 at least."""
        return at_least_float32(super().forward(input).squeeze(-1))
