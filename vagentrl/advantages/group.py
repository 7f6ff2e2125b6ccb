"""Group-relative advantages: a trajectory against others from the same initial state."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from vagentrl.advantages.estimator import EpisodeEstimator
from vagentrl.advantages.precision import precise, rounding
from vagentrl.advantages.sequence import TokenSequence
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
    noise: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, " N"]:
    """Each return minus its group's baseline.

    A group of one gets 0, since there is nothing to compare with. A group of equal returns gets
    exactly 0. Returns count as equal when they differ by no more than rounding explains: their
    spread would be noise, and dividing by it would turn noise into advantages.

    Args:
        returns: Return of each trajectory (or turn).
        group_ids: Group of each return; ids need be neither dense nor sorted.
        scale: ``std`` divides by the group's sample standard deviation + 1e-6 (GRPO: arXiv
            2402.03300, section 4.1.2; RAGEN eq. 5); None does not (Dr.GRPO: arXiv 2503.20783).
        baseline: ``mean`` of the group, or ``leave_one_out``: the mean of the *other* members
            (RLOO: arXiv 2402.14740).
        noise: Difference between two returns that rounding alone may cause. None: what a short sum
            in the dtype of ``returns`` carries, unless its terms nearly cancel.

    Returns:
        Advantages in the dtype of ``returns``; computed in float64.

    Raises:
        ConfigError: When ``scale`` or ``baseline`` is none of these.
    """
    check_comparison(scale, baseline)
    noise = 8 * rounding(returns.dtype) * returns.abs() if noise is None else noise
    exact = precise(returns)
    groups, group_of, sizes = group_ids.unique(return_inverse=True, return_counts=True)
    zeros = exact.new_zeros(len(groups))
    size = sizes[group_of]
    others = (size - 1).clamp(min=1)

    lowest = zeros.scatter_reduce(0, group_of, exact, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, group_of, exact, "amax", include_self=False)
    tolerance = zeros.scatter_reduce(0, group_of, precise(noise), "amax", include_self=False)
    is_equal = highest - lowest <= tolerance
    above = (exact - lowest[group_of]).masked_fill(is_equal[group_of], 0.0)

    centred = above - zeros.index_add(0, group_of, above)[group_of] / size
    advantages = centred * size / others if baseline == "leave_one_out" else centred
    if scale == "std":
        variance = zeros.index_add(0, group_of, centred.square())[group_of] / others
        advantages = advantages / (variance.sqrt() + 1e-6)
    return advantages.to(returns.dtype)


class GroupRelative(EpisodeEstimator):
    """GRPO, Dr.GRPO (``scale`` null) and RLOO (also ``baseline`` leave_one_out), without a critic.

    A trajectory's return is the sum of its rewards, KL penalties included. All sampled tokens of a
    trajectory get the same advantage.

    Args:
        scale: ``std`` divides by the group's standard deviation, null does not.
        baseline: Compare with the ``mean`` of the group, or ``leave_one_out`` of it.

    Raises:
        ConfigError: When ``scale`` or ``baseline`` is none of these.
    """

    needs_groups = True

    def __init__(self, scale: Scale = "std", baseline: Baseline = "mean") -> None:
        check_comparison(scale, baseline)
        self.scale: Scale = scale
        self.baseline: Baseline = baseline

    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        rewards = streams.gather(rollout.rewards)
        tokens = TokenSequence.of(rewards, None, streams.gather(rollout.action_mask))
        returns_N, noise_N = tokens.stream_returns()
        advantages_N = group_relative(
            returns_N, rollout.group_ids, scale=self.scale, baseline=self.baseline, noise=noise_N
        )
        return advantages_N.to(rewards.dtype)[:, None].expand(streams.shape)


def check_comparison(scale: Scale, baseline: Baseline) -> None:
    """Raise a `ConfigError` on a scale or baseline that there is not."""
    if scale not in ("std", None):
        raise ConfigError(f"scale is {scale!r}; choose 'std' or null")
    if baseline not in ("mean", "leave_one_out"):
        raise ConfigError(f"baseline is {baseline!r}; choose 'mean' or 'leave_one_out'")
