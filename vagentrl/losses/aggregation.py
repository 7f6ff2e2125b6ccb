"""How much each token counts in the loss of a minibatch."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.errors import ConfigError

AggregationMode = Literal["token_mean", "trajectory_mean", "constant_length"]


def trajectory_lengths(
    action_mask: Bool[Tensor, "B T"], trajectory_ids: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """For each row, the sampled tokens of its trajectory in all rows together."""
    _, trajectory_of = trajectory_ids.unique(return_inverse=True)
    row_lengths = action_mask.sum(1)
    return torch.zeros_like(row_lengths).index_add(0, trajectory_of, row_lengths)[trajectory_of]


def aggregation_weights(
    action_mask: Bool[Tensor, "B T"],
    trajectory_ids: Int[Tensor, " B"],
    mode: AggregationMode,
    *,
    constant_length: int | None = None,
    lengths: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B T"]:
    """Weights such that the minibatch's loss is ``(weights * per_token_loss).sum()``.

    - ``token_mean``: every token counts the same.
    - ``trajectory_mean``: the mean over trajectories of each one's token mean (RAGEN eq. 4),
      however many rows of the minibatch a trajectory owns.
    - ``constant_length``: the sum over tokens, divided by the number of trajectories and by a
      length that does not depend on them, so that long replies are not favoured (Dr.GRPO: arXiv
      2503.20783).

    Compute them once for the whole minibatch and split them along with it: the denominators are
    counted before the split, so the losses and gradients of micro-batches add up to exactly the
    minibatch's. A trajectory without a sampled token (padding rows) is not counted.

    ``lengths`` are the ``trajectory_lengths`` in the whole batch, for minibatches that hold some
    rows of a trajectory: the part of it that is here then counts as that part. Without them it
    counts as a whole one, and a trajectory as often as there are minibatches that hold some of it.
    """
    _check(mode, constant_length)
    row_lengths = action_mask.sum(1)
    if lengths is None:
        lengths = trajectory_lengths(action_mask, trajectory_ids)
    trajectories = (row_lengths / lengths.clamp(min=1)).sum()
    if constant_length is not None:
        denominators = (trajectories * constant_length).expand(len(action_mask))
    elif mode == "trajectory_mean":
        denominators = trajectories * lengths
    else:
        denominators = row_lengths.sum().expand(len(action_mask))
    return action_mask.to(torch.get_default_dtype()) / denominators.clamp(min=1e-9)[:, None]


class Aggregation:
    """How the losses of tokens become the loss of a minibatch.

    Args:
        mode: ``token_mean``, ``trajectory_mean`` or ``constant_length``.
        constant_length: Tokens to divide by in mode ``constant_length``, for instance the most
            that a trajectory may have; only there.
    """

    def __init__(
        self, mode: AggregationMode = "token_mean", constant_length: int | None = None
    ) -> None:
        _check(mode, constant_length)
        self.mode: AggregationMode = mode
        self.constant_length = constant_length

    def __call__(
        self, action_mask: Tensor, trajectory_ids: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        """``(B, T)`` weights of a minibatch; see ``aggregation_weights``."""
        return aggregation_weights(
            action_mask,
            trajectory_ids,
            self.mode,
            constant_length=self.constant_length,
            lengths=lengths,
        )


def _check(mode: AggregationMode, constant_length: int | None) -> None:
    if mode not in ("token_mean", "trajectory_mean", "constant_length"):
        raise ConfigError(
            f"mode is {mode!r}; choose 'token_mean', 'trajectory_mean' or 'constant_length'"
        )
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
