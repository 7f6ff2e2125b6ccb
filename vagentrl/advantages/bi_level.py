"""Bi-Level GAE: from turn to turn first, then from token to token inside each turn."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.estimator import CriticEstimator
from vagentrl.advantages.sequence import TokenSequence, gae


def bi_level_gae(
    rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    action_mask: Bool[Tensor, "N T"],
    turn_ids: Int[Tensor, "N T"],
    *,
    gamma: float,
    lam: float,
    turn_gamma: float,
    turn_lam: float,
    bootstrap: Float[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """GAE on two levels (VAGEN, arXiv 2510.16907, "Bi-Level GAE").

    With ``e_k`` the last sampled token of turn ``k`` and ``r_k`` the reward on it::

        delta_k = r_k + turn_gamma * V(e_{k+1}) - V(e_k)
        A_k = delta_k + turn_gamma * turn_lam * A_{k+1}

    Then ``A_k + V(e_k)`` takes the place of ``r_k``, and GAE(``gamma``, ``lam``) runs inside each
    turn as if nothing followed ``e_k``. The tokens before ``e_k`` are compared with their own
    values, so an exact critic does not hide what the turn's action was worth.

    Args:
        rewards: Reward of each token. A reward on another token than ``e_k``, such as a KL penalty,
            counts only in the second pass: it reaches the tokens before it in its own turn.
        values: Value of the state before each token.
        action_mask: True on sampled tokens; no other column is read.
        turn_ids: Number of the turn that sampled the token.
        gamma: Discount from token to token of a turn.
        lam: GAE's lambda from token to token of a turn.
        turn_gamma: Discount from turn to turn.
        turn_lam: GAE's lambda from turn to turn.
        bootstrap: Value after the last turn, 0 where the trajectory terminated; None: all 0.

    Returns:
        Advantages and returns (advantages + values), 0 off the action mask.
    """
    tokens = TokenSequence.of(rewards, values, action_mask, bootstrap)
    turn_ends = tokens.turn_ends(turn_ids)
    values_K = tokens.values[turn_ends]
    advantages_K = gae(
        tokens.rewards[turn_ends],
        values_K,
        tokens.ends[turn_ends],
        tokens.after,
        turn_gamma,
        turn_lam,
    )
    turn_rewards = tokens.rewards.masked_scatter(turn_ends, advantages_K + values_K)
    return tokens.credit(gae(turn_rewards, tokens.values, turn_ends, 0.0, gamma, lam))


class BiLevelGAE(CriticEstimator):
    """GAE from turn to turn, then from token to token inside each turn.

    Args:
        gamma: Discount from token to token of a turn.
        lam: GAE's lambda from token to token: 0 trusts the critic, 1 the rewards.
        turn_gamma: Discount from turn to turn.
        turn_lam: GAE's lambda from turn to turn.
        whiten: Give the batch's advantages zero mean and unit variance.

    Raises:
        ConfigError: When a discount is not between 0 and 1.
    """

    turn_discounts = ("turn_gamma",)

    def __init__(
        self,
        gamma: float = 1.0,
        lam: float = 1.0,
        turn_gamma: float = 0.95,
        turn_lam: float = 1.0,
        whiten: bool = True,
    ) -> None:
        super().__init__(whiten, gamma=gamma, lam=lam, turn_gamma=turn_gamma, turn_lam=turn_lam)

    def estimate(
        self,
        rewards: Tensor,
        values: Tensor,
        action_mask: Tensor,
        turn_ids: Tensor,
        bootstrap: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return bi_level_gae(
            rewards, values, action_mask, turn_ids, bootstrap=bootstrap, **self.discounts
        )
