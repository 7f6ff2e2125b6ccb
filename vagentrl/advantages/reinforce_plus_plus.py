"""REINFORCE++: no critic, and one scale for the whole batch instead of one for each group."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.discounts import check_discounts
from vagentrl.advantages.estimator import EpisodeEstimator
from vagentrl.advantages.group import group_relative
from vagentrl.advantages.sequence import TokenSequence, returns_to_go
from vagentrl.advantages.streams import Streams
from vagentrl.advantages.whitening import whiten
from vagentrl.types import RolloutBatch


def reinforce_plus_plus(
    rewards: Float[Tensor, "N T"],
    action_mask: Bool[Tensor, "N T"],
    group_ids: Int[Tensor, " N"] | None = None,
    *,
    gamma: float,
) -> Float[Tensor, "N T"]:
    """Each token's discounted return-to-go, whitened over all tokens (arXiv 2501.03262).

    Args:
        rewards: Reward of each token, KL penalties included.
        action_mask: True on sampled tokens; no other column is read.
        group_ids: Group of each trajectory. When given, the mean return of the group is first
            subtracted from the reward of the trajectory's last token (REINFORCE++-baseline), and
            so is discounted as an outcome is.
        gamma: Discount from token to token.

    Returns:
        Advantages, 0 off the action mask.
    """
    tokens = TokenSequence.of(rewards, None, action_mask)
    rewards_M = tokens.rewards
    if group_ids is not None:
        returns_N, noise_N = tokens.stream_returns()
        baseline_N = returns_N - group_relative(returns_N, group_ids, scale=None, noise=noise_N)
        rewards_M = rewards_M - baseline_N[tokens.stream_of] * tokens.ends
    to_go = tokens.spread(returns_to_go(rewards_M, tokens.ends, gamma))
    return whiten(to_go, action_mask)


class ReinforcePlusPlus(EpisodeEstimator):
    """REINFORCE++, without a critic: returns-to-go on one scale for the whole batch.

    Args:
        gamma: Discount from token to token.
        baseline: First subtract the mean return of the trajectory's group.

    Raises:
        ConfigError: When ``gamma`` is not between 0 and 1.
    """

    def __init__(self, gamma: float = 1.0, baseline: bool = False) -> None:
        check_discounts(gamma=gamma)
        self.gamma = gamma
        self.needs_groups = baseline

    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        return reinforce_plus_plus(
            streams.gather(rollout.rewards),
            streams.gather(rollout.action_mask),
            rollout.group_ids if self.needs_groups else None,
            gamma=self.gamma,
        )
