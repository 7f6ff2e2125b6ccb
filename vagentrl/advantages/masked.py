"""Masked GAE: one recursion over the sampled tokens."""

from jaxtyping import Bool, Float
from torch import Tensor

from vagentrl.advantages.estimator import CriticEstimator
from vagentrl.advantages.sequence import TokenSequence, gae


def masked_gae(
    rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    action_mask: Bool[Tensor, "N T"],
    *,
    gamma: float,
    lam: float,
    bootstrap: Float[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """GAE over sampled tokens only (VAGEN, arXiv 2510.16907, "Masked GAE").

    The next value of a token is the value at the next sampled token, however many tokens were
    observed in between.

    Args:
        rewards: Reward of each token.
        values: Value of the state before each token.
        action_mask: True on sampled tokens; no other column is read.
        gamma: Discount from token to token; the bootstrap is discounted by it too.
        lam: GAE's lambda from token to token.
        bootstrap: Value after the last token, 0 where the trajectory terminated; None: all 0.

    Returns:
        Advantages and returns (advantages + values), 0 off the action mask.
    """
    tokens = TokenSequence.of(rewards, values, action_mask, bootstrap)
    return tokens.credit(gae(tokens.rewards, tokens.values, tokens.ends, tokens.after, gamma, lam))


class MaskedGAE(CriticEstimator):
    """GAE over sampled tokens, as if the observations between them took no time.

    Args:
        gamma: Discount from token to token.
        lam: GAE's lambda from token to token: 0 trusts the critic, 1 the rewards.
        whiten: Give the batch's advantages zero mean and unit variance.

    Raises:
        ConfigError: When a discount is not between 0 and 1.
    """

    turn_discounts = ("gamma",)

    def __init__(self, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True) -> None:
        super().__init__(whiten, gamma=gamma, lam=lam)

    def estimate(
        self,
        rewards: Tensor,
        values: Tensor,
        action_mask: Tensor,
        turn_ids: Tensor,
        bootstrap: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return masked_gae(rewards, values, action_mask, bootstrap=bootstrap, **self.discounts)
