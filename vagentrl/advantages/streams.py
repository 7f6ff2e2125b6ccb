"""From the rows of a batch to one stream per trajectory, and back."""

from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from vagentrl.contracts import check_tensor
from vagentrl.types import RolloutBatch


@dataclass(frozen=True)
class Streams:
    """Where each of the ``M`` sampled tokens of a batch lies in its trajectory's stream.

    A stream holds the sampled tokens of one trajectory in the order in which they were sampled. Its
    turns may share one row (full history) or have a row each (window); estimators cannot tell.

    Attributes:
        cells: ``(M,)`` index of each token into the flattened ``(B, T)``.
        slots: ``(M,)`` index of the same token into the flattened ``(N, S)``.
        rows_shape: ``(B, T)``.
        shape: ``(N, S)``; ``S`` is the number of tokens of the longest trajectory.
    """

    cells: Int[Tensor, " M"]
    slots: Int[Tensor, " M"]
    rows_shape: torch.Size
    shape: torch.Size

    @classmethod
    def of(cls, rollout: RolloutBatch) -> "Streams":
        """The streams of a batch's ``N`` trajectories."""
        row, column = rollout.action_mask.nonzero(as_tuple=True)
        trajectory, turn = rollout.trajectory_ids[row], rollout.turn_ids[row, column]
        # sorted by trajectory, then by turn; stable, so the tokens of a turn stay in order
        turns = int(turn.max()) + 1 if len(turn) else 1
        order = (trajectory * turns + turn).argsort(stable=True)
        trajectory = trajectory[order]

        lengths = trajectory.bincount(minlength=len(rollout.group_ids))
        starts = lengths.cumsum(0) - lengths
        position = torch.arange(len(order), device=order.device) - starts[trajectory]
        longest = int(lengths.max())
        return cls(
            cells=(row * rollout.action_mask.shape[1] + column)[order],
            slots=trajectory * longest + position,
            rows_shape=rollout.action_mask.shape,
            shape=torch.Size((len(lengths), longest)),
        )

    def gather(self, rows: Shaped[Tensor, "B T"], fill: int = 0) -> Shaped[Tensor, "N S"]:
        """The sampled tokens of each trajectory, padded with ``fill`` on the right."""
        streams = rows.new_full((self.shape.numel(),), fill)
        streams[self.slots] = rows.flatten()[self.cells]
        return streams.view(self.shape)

    def check(self, part: object, method: str, value: object) -> Tensor:
        """A part's answer, if it is a float tensor ``(N, S)`` on the device of the batch."""
        return check_tensor(part, method, value, "(N, S)", self.shape, self.cells.device)

    def scatter(self, streams: Shaped[Tensor, "N S"]) -> Shaped[Tensor, "B T"]:
        """Each token back in its row and column, 0 everywhere else."""
        rows = streams.new_zeros(self.rows_shape.numel())
        rows[self.cells] = streams.flatten()[self.slots]
        return rows.view(self.rows_shape)
