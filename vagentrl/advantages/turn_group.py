"""Each turn against the same turn of the other group members, without bias."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.discounts import check_discounts
from vagentrl.advantages.estimator import EpisodeEstimator
from vagentrl.advantages.group import group_relative
from vagentrl.advantages.sequence import TokenSequence
from vagentrl.advantages.streams import Streams
from vagentrl.types import RolloutBatch


def turn_group_relative(
    rewards: Float[Tensor, "N T"],
    action_mask: Bool[Tensor, "N T"],
    turn_ids: Int[Tensor, "N T"],
    group_ids: Int[Tensor, " N"],
    *,
    turn_gamma: float,
) -> Float[Tensor, "N T"]:
    """Return-to-go of turn ``k`` minus its mean over the *other* members that reached turn ``k``.

    The baseline does not depend on the member's own actions, because members of a group play
    independently of each other. So it leaves the expected policy gradient unchanged, however many
    turns each member has. A mean that includes the member itself scales a turn by how many members
    reached it, which depends on the member's own earlier actions, and that is a bias.

    Where no other member reached turn ``k`` the baseline is 0: the others earn nothing from there
    on. Leaving such a turn out would be a bias too. A group of one keeps its plain return-to-go.

    Args:
        rewards: Reward of each token; a turn earns the sum over its tokens.
        action_mask: True on sampled tokens; no other column is read.
        turn_ids: Number of the turn that sampled the token.
        group_ids: Group of each trajectory.
        turn_gamma: Discount from turn to turn.

    Returns:
        Advantages, 0 off the action mask.
    """
    tokens = TokenSequence.of(rewards, None, action_mask)
    turn_ends = tokens.turn_ends(turn_ids)
    turn_of, returns_K, noise_K = tokens.turn_returns(turn_ends, turn_gamma)

    # the same turn number in the same group makes a group of its own
    numbers_K = turn_ids.flatten()[tokens.index][turn_ends]
    pairs = torch.stack((group_ids[tokens.stream_of][turn_ends], numbers_K))
    _, peers, count = pairs.unique(dim=1, return_inverse=True, return_counts=True)
    compared = group_relative(returns_K, peers, scale=None, baseline="leave_one_out", noise=noise_K)
    advantages_K = torch.where(count[peers] == 1, returns_K, compared)
    return tokens.spread(advantages_K[turn_of])


class TurnGroupRelative(EpisodeEstimator):
    """Each turn's return-to-go against the other members of its group that reached that turn.

    It needs no critic, and is unbiased however many turns the members have. A turn's reward
    includes KL penalties on its tokens.

    Args:
        turn_gamma: Discount from turn to turn.

    Raises:
        ConfigError: When ``turn_gamma`` is not between 0 and 1.
    """

    needs_groups = True

    def __init__(self, turn_gamma: float = 1.0) -> None:
        check_discounts(turn_gamma=turn_gamma)
        self.turn_gamma = turn_gamma

    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        return turn_group_relative(
            streams.gather(rollout.rewards),
            streams.gather(rollout.action_mask),
            streams.gather(rollout.turn_ids, fill=-1),
            rollout.group_ids,
            turn_gamma=self.turn_gamma,
        )
