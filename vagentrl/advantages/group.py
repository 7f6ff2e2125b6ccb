"""Group-relative advantages: a trajectory against others from the same initial state."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from vagentrl.advantages.estimator import EpisodeEstimator
from vagentrl.advantages.streams import Streams
from vagentrl.errors import ConfigError
from vagentrl.types import RolloutBatch

Scale = Literal["std"] | None
Baseline = Literal["mean", "leave_one_out"]


def group_relative(
    returns: Float[Tensor, " N"],
    group_ids: Int[Tensor, " N"],
    *,
    scale: Scale = "std",
    baseline: Baseline = "mean",
) -> Float[Tensor, " N"]:
    """Each trajectory's return against its own group's.

    ``scale="std"`` divides by the group's sample standard deviation + 1e-6 (GRPO: arXiv
    2402.03300; RAGEN eq. 5), None does not (Dr.GRPO: arXiv 2503.20783). The baseline
    ``leave_one_out`` is the mean of the *other* members (RLOO: arXiv 2402.14740).

    A group of one gets 0: with nothing to compare against there is nothing to learn. So does,
    exactly, a group of equal returns.
    """
    check_comparison(scale, baseline)
    groups, group_of, sizes = group_ids.unique(return_inverse=True, return_counts=True)
    zeros = returns.new_zeros(len(groups))
    size = sizes[group_of]
    others = (size - 1).clamp(min=1)
    # Measured from the lowest, equal returns are exactly 0: the rounding of their mean, divided by
    # a standard deviation that is rounding too, would pass for a signal.
    lowest = zeros.scatter_reduce(0, group_of, returns, "amin", include_self=False)
    above = returns - lowest[group_of]
    centred = above - zeros.index_add(0, group_of, above)[group_of] / size
    advantages = centred * size / others if baseline == "leave_one_out" else centred
    if scale == "std":
        variance = zeros.index_add(0, group_of, centred.square())[group_of] / others
        advantages = advantages / (variance.sqrt() + 1e-6)
    return advantages


class GroupRelative(EpisodeEstimator):
    """GRPO, Dr.GRPO (``scale`` null) and RLOO (also ``baseline`` leave_one_out), without a critic.

    A trajectory's return is the sum of its rewards, KL penalties included; all its sampled tokens
    get the same advantage.

    Args:
        scale: ``std`` divides by the group's standard deviation, null does not.
        baseline: Compare with the ``mean`` of the group, or ``leave_one_out`` of it.
    """

    needs_groups = True

    def __init__(self, scale: Scale = "std", baseline: Baseline = "mean") -> None:
        check_comparison(scale, baseline)
        self.scale: Scale = scale
        self.baseline: Baseline = baseline

    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        advantages = group_relative(
            streams.gather(rollout.rewards).sum(1),
            rollout.group_ids,
            scale=self.scale,
            baseline=self.baseline,
        )
        return advantages[:, None].expand(streams.shape)


def check_comparison(scale: Scale, baseline: Baseline) -> None:
    if scale not in ("std", None):
        raise ConfigError(f"scale is {scale!r}; choose 'std' or null")
    if baseline not in ("mean", "leave_one_out"):
        raise ConfigError(f"baseline is {baseline!r}; choose 'mean' or 'leave_one_out'")
