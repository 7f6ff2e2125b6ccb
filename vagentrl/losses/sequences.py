"""Sums over whole turns, rows and trajectories."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

Sequence = Literal["turn", "row"]


def sequence_sum(
    values: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    turn_ids: Int[Tensor, "B T"],
    sequence: Sequence,
) -> Float[Tensor, "B T"]:
    """At each sampled token, the sum of ``values`` over the sampled tokens of its turn or row.

    The result is meaningless off the action mask. A row may hold several turns; a turn is in one
    row.
    """
    slots = turn_ids.clamp(min=0) if sequence == "turn" else torch.zeros_like(turn_ids)
    counted = values.where(action_mask, 0.0)
    sums = values.new_zeros(len(values), int(slots.max()) + 1).scatter_add(1, slots, counted)
    return sums.gather(1, slots)


def trajectory_sum(
    values: Num[Tensor, " B"], trajectory_ids: Int[Tensor, " B"]
) -> Num[Tensor, " B"]:
    """For each row, the sum of ``values`` over all rows of its trajectory."""
    _, trajectory_of = trajectory_ids.unique(return_inverse=True)
    return torch.zeros_like(values).index_add(0, trajectory_of, values)[trajectory_of]
