"""VineTurn: credit per turn without a critic, from continuations of the episodes themselves."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.continuations import Continuations
from vagentrl.advantages.discounts import check_discounts
from vagentrl.advantages.estimator import EpisodeEstimator
from vagentrl.advantages.sequence import TokenSequence, gae, returns_to_go
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
    """GAE from turn to turn with sampled values (VinePPO, arXiv 2410.01679, with turns as steps).

    ``V_k`` is the value of the state before turn ``k``. For turn 0 it is the mean return of the
    other members of the group, and 0 in a group of one. For a turn with continuations it is their
    mean return. For any other turn it is the latest known value minus the rewards since, which is
    a baseline but not a value to bootstrap from. With ``R_k`` the reward of the turn::

        A_k = R_k + turn_gamma * T_{k+1} - V_k
        T_k = (1 - turn_lam) * V_k + turn_lam * (A_k + V_k)    where continuations were played
        T_k = A_k + V_k                                        elsewhere

    No ``V_k`` depends on the actions of turn ``k`` or later. So with ``turn_lam`` 1 the expected
    policy gradient is the true one whatever the values are, and with a smaller ``turn_lam`` if the
    continuations are played to their end.

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
    turn_of, rewards_K = tokens.turns(turn_ends)
    ends_K = tokens.ends[turn_ends]
    starts_K = ends_K.roll(1)  # the last turn is an end, and the first one a start
    sampled_K = continued_values.flatten()[tokens.index][turn_ends].to(rewards_K)
    is_sampled_K = ~sampled_K.isnan() & ~starts_K

    returns_K = returns_to_go(rewards_K, ends_K, turn_gamma)
    first_K = torch.zeros_like(returns_K)
    groups_P = group_ids[tokens.stream_of][turn_ends][starts_K]
    first_K[starts_K] = _mean_of_others(returns_K[starts_K], groups_P)

    values_K = _carried(first_K.where(starts_K, sampled_K), starts_K | is_sampled_K, rewards_K)
    lam_K = torch.ones_like(values_K).where(~is_sampled_K.roll(-1), turn_lam)
    advantages_K = gae(rewards_K, values_K, ends_K, 0.0, turn_gamma, lam_K)
    return tokens.spread(advantages_K[turn_of])


def _mean_of_others(
    returns: Float[Tensor, " P"], group_ids: Int[Tensor, " P"]
) -> Float[Tensor, " P"]:
    """Mean return of the other members of each member's group; 0 where there are none."""
    groups, group_of, sizes = group_ids.unique(return_inverse=True, return_counts=True)
    totals = returns.new_zeros(len(groups)).index_add(0, group_of, returns)
    return (totals[group_of] - returns) / (sizes[group_of] - 1).clamp(min=1)


def _carried(
    values: Float[Tensor, " K"], is_known: Bool[Tensor, " K"], rewards: Float[Tensor, " K"]
) -> Float[Tensor, " K"]:
    """Known values as they are; in between, the latest known one minus the rewards since."""
    earned = rewards.cumsum(0) - rewards
    positions = torch.arange(len(values), device=values.device)
    latest = positions.where(is_known, -1).cummax(0).values
    return values[latest] + earned[latest] - earned


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
        every: Choose every n-th turn. The turns in between share the value of the one before.
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
