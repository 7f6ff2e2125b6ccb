"""The value head: a state to one number."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vagentrl.models.forward import at_least_float32


class ValueHead(nn.Linear):
    """Linear map from a hidden state to its value; 0 for every state at the start.

    It computes in float32 at least, whatever the type of the states and the weights, and also under
    autocast: in bfloat16, values between 8 and 16 are up to 0.03 off.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(hidden_size, 1, dtype=dtype)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """``(B, T, D)`` states to ``(B, T)`` values."""
        weight = at_least_float32(self.weight)
        with torch.autocast(input.device.type, enabled=False):
            return F.linear(input.to(weight.dtype), weight, self.bias.to(weight.dtype)).squeeze(-1)
