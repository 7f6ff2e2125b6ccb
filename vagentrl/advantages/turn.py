"""Turn-wise GAE: a turn is one action."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.estimator import CriticEstimator
from vagentrl.advantages.sequence import TokenSequence, gae


def turn_gae(
    rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    action_mask: Bool[Tensor, "N T"],
    turn_ids: Int[Tensor, "N T"],
    *,
    turn_gamma: float,
    turn_lam: float,
    bootstrap: Float[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """GAE (arXiv 1506.02438, eq. 16) with a turn as one step.

    With ``f_k`` the first sampled token of turn ``k`` and ``R_k`` the sum of the turn's rewards::

        delta_k = R_k + turn_gamma * V(f_{k+1}) - V(f_k)
        A_k = delta_k + turn_gamma * turn_lam * A_{k+1}

    Every token of turn ``k`` gets the advantage ``A_k`` and the return ``A_k + V(f_k)``. The
    baseline must be the value before the turn's first token: the value at a later token has read a
    part of the action, and an exact critic would then leave no advantage for it.

    Args:
        rewards: Reward of each token; a KL penalty on any token is part of ``R_k``.
        values: Value of the state before each token.
        action_mask: True on sampled tokens; no other column is read.
        turn_ids: Number of the turn that sampled the token.
        turn_gamma: Discount from turn to turn.
        turn_lam: GAE's lambda from turn to turn.
        bootstrap: Value after the last turn, 0 where the trajectory terminated; None: all 0.

    Returns:
        Advantages and returns, 0 off the action mask.
    """
    tokens = TokenSequence.of(rewards, values, action_mask, bootstrap)
    turn_ends = tokens.turn_ends(turn_ids)
    turn_starts = turn_ends.roll(1)  # one after each end; the last end is followed by the first
    turn_of, rewards_K = tokens.turns(turn_ends)
    values_K = tokens.values[turn_starts]
    advantages_K = gae(
        rewards_K, values_K, tokens.ends[turn_ends], tokens.after, turn_gamma, turn_lam
    )
    returns_K = advantages_K + values_K
    return tokens.spread(advantages_K[turn_of]), tokens.spread(returns_K[turn_of])


class TurnGAE(CriticEstimator):
    """GAE from turn to turn: all tokens of a turn get one advantage and one return.

    Args:
        turn_gamma: Discount from turn to turn.
        turn_lam: GAE's lambda from turn to turn: 0 trusts the critic, 1 the rewards.
        whiten: Give the batch's advantages zero mean and unit variance.

    Raises:
        ConfigError: When a discount is not between 0 and 1.
    """

    turn_discounts = ("turn_gamma",)

    def __init__(
        self, turn_gamma: float = 0.95, turn_lam: float = 1.0, whiten: bool = True
    ) -> None:
        super().__init__(whiten, turn_gamma=turn_gamma, turn_lam=turn_lam)

    def estimate(
        self,
        rewards: Tensor,
        values: Tensor,
        action_mask: Tensor,
        turn_ids: Tensor,
        bootstrap: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return turn_gae(
            rewards, values, action_mask, turn_ids, bootstrap=bootstrap, **self.discounts
        )
