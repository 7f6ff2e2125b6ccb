"""One number per state."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Linear):
    """Linear map from a hidden state to its value; starts at 0 everywhere."""

    def __init__(self, hidden_size: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(hidden_size, 1, dtype=dtype)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, states: Tensor) -> Tensor:
        """``(B, T, D)`` states to ``(B, T)`` values in float32."""
        return super().forward(states).squeeze(-1).float()
