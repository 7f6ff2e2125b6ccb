"""How much each token counts in the loss of a minibatch."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.sequences import sequence_sum, trajectory_sum

AggregationMode = Literal["token_mean", "turn_mean", "trajectory_mean", "constant_length"]


def trajectory_lengths(
    action_mask: Bool[Tensor, "B T"], trajectory_ids: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """For each row, the number of sampled tokens in all rows of its trajectory."""
    return trajectory_sum(action_mask.sum(1), trajectory_ids)


def aggregation_weights(
    action_mask: Bool[Tensor, "B T"],
    turn_ids: Int[Tensor, "B T"],
    trajectory_ids: Int[Tensor, " B"],
    mode: AggregationMode,
    *,
    constant_length: int | None = None,
    lengths: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B T"]:
    """Weights such that the minibatch's loss is ``(weights * per_token_loss).sum()``.

    - ``token_mean``: the mean over all sampled tokens.
    - ``turn_mean``: the mean over turns of each turn's token mean. Long replies count no more than
      short ones, and an episode counts in proportion to its turns.
    - ``trajectory_mean``: the mean over trajectories of each trajectory's token mean (RAGEN eq. 4),
      however many rows of the minibatch belong to a trajectory.
    - ``constant_length``: the sum over tokens, divided by the number of trajectories and by a
      constant length, so that long replies are not favoured (Dr.GRPO, arXiv 2503.20783).

    Compute the weights once for a whole minibatch and split them with it. The denominators are
    then those of the minibatch, and the losses and gradients of its micro-batches add up to its
    own. Trajectories without a sampled token (padding rows) are not counted.

    Args:
        action_mask: True on sampled tokens.
        turn_ids: Number of the turn that sampled the token; a turn never spans two rows.
        trajectory_ids: Trajectory of each row.
        mode: See above.
        constant_length: The length to divide by in mode ``constant_length``.
        lengths: The ``trajectory_lengths`` in the whole batch, for minibatches that hold only some
            rows of a trajectory. These rows then count as their share of the trajectory. Without
            ``lengths`` they count as a whole trajectory in each such minibatch.
    """
    _check(mode, constant_length)
    sampled = action_mask.to(torch.get_default_dtype())
    row_lengths = action_mask.sum(1)
    if lengths is None:
        lengths = trajectory_lengths(action_mask, trajectory_ids)
    trajectories = (row_lengths / lengths.clamp(min=1)).sum()
    if constant_length is not None:
        denominators = trajectories * constant_length
    elif mode == "trajectory_mean":
        denominators = (trajectories * lengths)[:, None]
    elif mode == "turn_mean":
        turn_lengths = sequence_sum(sampled, action_mask, turn_ids, "turn").clamp(min=1)
        denominators = turn_lengths * (sampled / turn_lengths).sum()
    else:
        denominators = row_lengths.sum()
    return sampled / denominators.clamp(min=1e-9)


class Aggregation:
    """How the losses of tokens become the loss of a minibatch.

    Args:
        mode: ``token_mean``, ``turn_mean``, ``trajectory_mean`` or ``constant_length``.
        constant_length: Number of tokens to divide by in mode ``constant_length``, for instance
            the most that a trajectory may have. Other modes do not take it.
    """

    def __init__(
        self, mode: AggregationMode = "token_mean", constant_length: int | None = None
    ) -> None:
        _check(mode, constant_length)
        self.mode: AggregationMode = mode
        self.constant_length = constant_length

    def __call__(
        self,
        action_mask: Tensor,
        turn_ids: Tensor,
        trajectory_ids: Tensor,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """``(B, T)`` weights of a minibatch; see ``aggregation_weights``."""
        return aggregation_weights(
            action_mask,
            turn_ids,
            trajectory_ids,
            self.mode,
            constant_length=self.constant_length,
            lengths=lengths,
        )


def _check(mode: AggregationMode, constant_length: int | None) -> None:
    if mode not in get_args(AggregationMode):
        raise ConfigError(f"mode is {mode!r}; choose one of {', '.join(get_args(AggregationMode))}")
    if mode == "constant_length" and (constant_length is None or constant_length < 1):
        raise ConfigError(
            f"mode is 'constant_length' but constant_length is {constant_length}; "
            "give the number of tokens to divide by, such as the most a trajectory may have"
        )
    if mode != "constant_length" and constant_length is not None:
        raise ConfigError(
            f"constant_length is {constant_length} but mode is {mode!r}, which does not read it; "
            "remove it, or choose mode 'constant_length'"
        )
