"""Sums over whole turns or rows, at every token of them."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Sequence = Literal["turn", "row"]


def sequence_sum(
    values: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    turn_ids: Int[Tensor, "B T"],
    sequence: Sequence,
) -> Float[Tensor, "B T"]:
    """At each sampled token the sum of ``values`` over the sampled tokens of its turn or row.

    Off the action mask it means nothing. A row may hold several turns; a turn is in one row.
    """
    slots = turn_ids.clamp(min=0) if sequence == "turn" else torch.zeros_like(turn_ids)
    counted = values.where(action_mask, 0.0)
    sums = values.new_zeros(len(values), int(slots.max()) + 1).scatter_add(1, slots, counted)
    return sums.gather(1, slots)
