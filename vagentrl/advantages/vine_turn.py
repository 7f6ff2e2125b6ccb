"""VineTurn: credit per turn without a critic, from continuations of the episodes themselves."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.continuations import Continuations
from vagentrl.advantages.discounts import check_discounts
from vagentrl.advantages.estimator import EpisodeEstimator
from vagentrl.advantages.group import group_relative
from vagentrl.advantages.precision import rounding
from vagentrl.advantages.sequence import TokenSequence, gae
from vagentrl.advantages.streams import Streams
from vagentrl.advantages.whitening import whiten
from vagentrl.types import RolloutBatch


def vine_turn(
    rewards: Float[Tensor, "N T"],
    action_mask: Bool[Tensor, "N T"],
    turn_ids: Int[Tensor, "N T"],
    continued_values: Float[Tensor, "N T"],
    group_ids: Int[Tensor, " N"],
    *,
    turn_gamma: float,
    turn_lam: float,
) -> Float[Tensor, "N T"]:
    """GAE with sampled values (VinePPO, arXiv 2410.01679), where a step is one or more turns.

    The value ``V_c`` of the state before turn ``c`` is known at turn 0, as the mean return of the
    other members of the group (0 in a group of one), and where continuations were played, as their
    mean return. These turns divide the trajectory into segments, and all turns of a segment share
    its advantage. With ``R_c`` the discounted sum of the rewards of the segment that begins with
    turn ``c``, and ``d`` the first turn of the next segment::

        A_c = R_c + turn_gamma ** (d - c) * (V_d + turn_lam * A_d) - V_c

    After the last segment ``V_d`` and ``A_d`` are 0. No value depends on the actions of its segment
    or later. So with ``turn_gamma`` 1 the expected policy gradient is the true one: with
    ``turn_lam`` 1 whatever the values are, and with a smaller one if the continuations are played
    to their end. Advantages that rounding alone explains are 0.

    Args:
        rewards: Reward of each token; a turn earns the sum over its tokens.
        action_mask: True on sampled tokens; no other column is read.
        turn_ids: Number of the turn that sampled the token.
        continued_values: Mean return of the continuations from the start of the token's turn; NaN
            where none were played.
        group_ids: Group of each trajectory.
        turn_gamma: Discount from turn to turn.
        turn_lam: GAE's lambda where continuations were played: 0 trusts them, 1 the episode itself.

    Returns:
        Advantages, 0 off the action mask.
    """
    tokens = TokenSequence.of(rewards, None, action_mask)
    turn_ends = tokens.turn_ends(turn_ids)
    turn_of, returns_K, noise_K = tokens.turn_returns(turn_ends, turn_gamma)
    _, rewards_K = tokens.turns(turn_ends)
    ends_K = tokens.ends[turn_ends]
    starts_K = ends_K.roll(1)  # the last turn is an end, and the first one a start
    continued_K = continued_values.flatten()[tokens.index][turn_ends].to(rewards_K)
    is_continued_K = ~continued_K.isnan() & ~starts_K

    values_K = continued_K.where(is_continued_K, 0.0)
    groups_P = group_ids[tokens.stream_of][turn_ends][starts_K]
    values_K[starts_K] = _mean_of_others(returns_K[starts_K], groups_P, noise_K[starts_K])
    # Inside a segment lambda is 1, so that the values there, which are not known, cancel.
    lam_K = torch.ones_like(values_K).where(~is_continued_K.roll(-1), turn_lam)
    advantages_K = gae(rewards_K, values_K, ends_K, 0.0, turn_gamma, lam_K)

    noise_K = noise_K + rounding(tokens.dtype) * values_K.abs()
    advantages_K = advantages_K.masked_fill(advantages_K.abs() <= noise_K, 0.0)
    positions_K = torch.arange(len(values_K), device=values_K.device)
    segment_K = positions_K.where(starts_K | is_continued_K, -1).cummax(0).values
    return tokens.spread(advantages_K[segment_K][turn_of])


def _mean_of_others(
    returns: Float[Tensor, " P"], group_ids: Int[Tensor, " P"], noise: Float[Tensor, " P"]
) -> Float[Tensor, " P"]:
    """Mean return of the other members of each member's group; 0 where there are none."""
    _, group_of, sizes = group_ids.unique(return_inverse=True, return_counts=True)
    above = group_relative(returns, group_of, scale=None, baseline="leave_one_out", noise=noise)
    return (returns - above).masked_fill(sizes[group_of] == 1, 0.0)


class VineTurn(EpisodeEstimator):
    """Each turn against continuations that the policy plays from the same state.

    It needs no critic. Environments replay exactly from their seeds and the replies, so the state
    before any turn can be reached again; the mean return of ``continuations`` further episodes
    from there is that turn's baseline, and the value that the turn before it is bootstrapped from
    (VinePPO, arXiv 2410.01679). With ``every`` 1 they cost about ``continuations × L / 2`` times
    the tokens of the episodes themselves, where an episode has ``L`` turns; ``every`` and
    ``horizon`` make it cheaper. What they cost is logged as ``rollout/continuation_tokens`` and
    ``time/continue``. They know no KL penalty and no bonus of a callback: with those,
    ``turn_lam`` below 1 is slightly biased.

    Args:
        continuations: Number of continuations from each chosen turn.
        every: Choose every n-th turn. The turns in between share the advantage of the one before.
        horizon: Turns after which a continuation is cut; null plays it to its end. A shorter
            horizon leaves out what is earned later; with ``turn_lam`` below 1 this is a bias.
        turn_gamma: Discount from turn to turn.
        turn_lam: GAE's lambda from turn to turn: 0 trusts the continuations, 1 the episode itself.
        whiten: Give the batch's advantages zero mean and unit variance.

    Raises:
        ConfigError: When a discount is not between 0 and 1, or a number below 1.
    """

    needs_groups = True

    def __init__(
        self,
        continuations: int = 2,
        every: int = 2,
        horizon: int | None = None,
        turn_gamma: float = 0.95,
        turn_lam: float = 0.0,
        whiten: bool = True,
    ) -> None:
        check_discounts(turn_lam=turn_lam)
        self.continuations = Continuations(continuations, every, horizon, turn_gamma)
        self.turn_gamma = turn_gamma
        self.turn_lam = turn_lam
        self.whiten = whiten

    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        values = rollout.continued_values
        if values is None:  # no episode had a second turn to continue from
            values = torch.full_like(rollout.rewards, torch.nan)
        mask = streams.gather(rollout.action_mask)
        advantages = vine_turn(
            streams.gather(rollout.rewards),
            mask,
            streams.gather(rollout.turn_ids, fill=-1),
            streams.gather(values),
            rollout.group_ids,
            turn_gamma=self.turn_gamma,
            turn_lam=self.turn_lam,
        )
        return whiten(advantages, mask) if self.whiten else advantages
