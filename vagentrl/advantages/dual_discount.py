"""Dual-discount GAE: one discount between tokens of a turn, another between turns."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.estimator import CriticEstimator
from vagentrl.advantages.sequence import TokenSequence, gae


def dual_discount_gae(
    rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    action_mask: Bool[Tensor, "N T"],
    turn_ids: Int[Tensor, "N T"],
    *,
    token_gamma: float,
    token_lam: float,
    step_gamma: float,
    step_lam: float,
    bootstrap: Float[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """One backward recursion over the sampled tokens of the whole episode (Verlog).

    The step from a turn's last token, to the next turn's first token or to ``bootstrap``, uses
    ``step_gamma`` and ``step_lam``; every other step uses ``token_gamma`` and ``token_lam``.

    Args:
        rewards: Reward of each token.
        values: Value of the state before each token.
        action_mask: True on sampled tokens; no other column is read.
        turn_ids: Number of the turn that sampled the token.
        token_gamma: Discount from token to token of a turn.
        token_lam: GAE's lambda from token to token of a turn.
        step_gamma: Discount from a turn's last token to what follows the turn.
        step_lam: GAE's lambda over the same step.
        bootstrap: Value after the last turn, 0 where the trajectory terminated; None: all 0.

    Returns:
        Advantages and returns (advantages + values), 0 off the action mask.
    """
    tokens = TokenSequence.of(rewards, values, action_mask, bootstrap)
    turn_ends = tokens.turn_ends(turn_ids)
    gamma = torch.full_like(tokens.values, token_gamma).masked_fill(turn_ends, step_gamma)
    lam = torch.full_like(tokens.values, token_lam).masked_fill(turn_ends, step_lam)
    return tokens.credit(gae(tokens.rewards, tokens.values, tokens.ends, tokens.after, gamma, lam))


class DualDiscountGAE(CriticEstimator):
    """GAE over the tokens of an episode that discounts turns, but not the tokens in them.

    Args:
        token_gamma: Discount from token to token of a turn.
        token_lam: GAE's lambda from token to token: 0 trusts the critic, 1 the rewards.
        step_gamma: Discount from a turn's last token to the next turn's first.
        step_lam: GAE's lambda over the same step.
        whiten: Give the batch's advantages zero mean and unit variance.

    Raises:
        ConfigError: When a discount is not between 0 and 1.
    """

    turn_discounts = ("token_gamma", "step_gamma")

    def __init__(
        self,
        token_gamma: float = 1.0,
        token_lam: float = 1.0,
        step_gamma: float = 0.99,
        step_lam: float = 0.95,
        whiten: bool = True,
    ) -> None:
        super().__init__(
            whiten,
            token_gamma=token_gamma,
            token_lam=token_lam,
            step_gamma=step_gamma,
            step_lam=step_lam,
        )

    def estimate(
        self,
        rewards: Tensor,
        values: Tensor,
        action_mask: Tensor,
        turn_ids: Tensor,
        bootstrap: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return dual_discount_gae(
            rewards, values, action_mask, turn_ids, bootstrap=bootstrap, **self.discounts
        )
