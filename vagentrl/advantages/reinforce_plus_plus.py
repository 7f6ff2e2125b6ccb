"""REINFORCE++: no critic, and one scale for the whole batch instead of one for each group."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.estimator import EpisodeEstimator, check_discounts
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

    ``rewards`` hold the KL penalties of tokens. With ``group_ids`` the mean return of a
    trajectory's group is first taken off the reward of its last token (REINFORCE++-baseline): it is
    discounted as the outcome is.
    """
    tokens = TokenSequence.of(rewards, None, action_mask)
    earned = tokens.rewards
    if group_ids is not None:
        returns = earned.new_zeros(len(rewards)).index_add(0, tokens.stream_of, earned)
        groups, group_of, sizes = group_ids.unique(return_inverse=True, return_counts=True)
        means = earned.new_zeros(len(groups)).index_add(0, group_of, returns) / sizes
        earned = earned - means[group_of][tokens.stream_of] * tokens.ends
    to_go = tokens.spread(returns_to_go(earned, tokens.ends, gamma))
    return whiten(to_go, action_mask)


class ReinforcePlusPlus(EpisodeEstimator):
    """REINFORCE++, without a critic: returns-to-go on one scale for the whole batch.

    Args:
        gamma: Discount from token to token.
        baseline: Take off the mean return of the trajectory's group first.
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
