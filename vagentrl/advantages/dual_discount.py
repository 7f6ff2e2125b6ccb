"""Dual-discount GAE: tokens of a turn and steps of the environment age differently."""

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

    The move out of a turn's last token, to the next turn's first or to ``bootstrap``, uses the
    step discounts; every other move uses the token discounts.
    """
    tokens = TokenSequence.of(rewards, values, action_mask, bootstrap)
    turn_ends = tokens.turn_ends(turn_ids)
    gamma = torch.full_like(tokens.values, token_gamma).masked_fill(turn_ends, step_gamma)
    lam = torch.full_like(tokens.values, token_lam).masked_fill(turn_ends, step_lam)
    return tokens.credit(gae(tokens.rewards, tokens.values, tokens.ends, tokens.after, gamma, lam))


class DualDiscountGAE(CriticEstimator):
    """GAE over the tokens of an episode that discounts steps, not the words they take.

    Args:
        token_gamma: Discount from token to token of a turn.
        token_lam: How far ahead a token trusts what was sampled over what the critic says.
        step_gamma: Discount from a turn's last token to the next turn's first.
        step_lam: The same trust, over that move.
        whiten: Give the batch's advantages zero mean and unit variance.
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
