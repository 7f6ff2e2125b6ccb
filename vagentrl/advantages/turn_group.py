"""Turn by turn against the rest of the group, without bias."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.estimator import EpisodeEstimator, check_discounts
from vagentrl.advantages.group import group_relative
from vagentrl.advantages.sequence import TokenSequence, returns_to_go
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
    """Return-to-go of turn ``k``, minus its mean over the *other* members that reached turn ``k``.

    Members of a group are independent of each other, so a baseline from the others says nothing
    about this one's actions and leaves the expected gradient as it is, however many turns each of
    them has. A mean (or deviation) that includes the member itself does not: it shrinks the turns
    by how many happened to get that far, and whether this one did is its own doing.

    Where no other member reached turn ``k`` the baseline is 0: the others earn nothing from there
    on. To drop the turn instead would shrink its gradient by the chance of that. So a group of one
    keeps its plain return-to-go.
    """
    tokens = TokenSequence.of(rewards, None, action_mask)
    turn_ends = tokens.turn_ends(turn_ids)
    turn_of, rewards_K = tokens.turns(turn_ends)
    returns_K = returns_to_go(rewards_K, tokens.ends[turn_ends], turn_gamma)

    # the same turn of the same group makes a group of its own
    turns_K = turn_ids.flatten()[tokens.index][turn_ends]
    pairs = torch.stack((group_ids[tokens.stream_of][turn_ends], turns_K))
    _, peers, count = pairs.unique(dim=1, return_inverse=True, return_counts=True)
    compared = group_relative(returns_K, peers, scale=None, baseline="leave_one_out")
    advantages_K = torch.where(count[peers] == 1, returns_K, compared)
    return tokens.spread(advantages_K[turn_of])


class TurnGroupRelative(EpisodeEstimator):
    """Each turn's return-to-go against the other members of its group that got that far.

    It needs no critic, and is unbiased however many turns the members have. What a turn earned
    includes KL penalties on its tokens.

    Args:
        turn_gamma: Discount from turn to turn.
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
