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
    """GAE over the sampled tokens only (VAGEN, "Masked GAE").

    The next value of a token is the value at the next sampled token, however much was observed in
    between; after the last one it is ``bootstrap``, discounted like a token.
    """
    tokens = TokenSequence.of(rewards, values, action_mask, bootstrap)
    return tokens.credit(gae(tokens.rewards, tokens.values, tokens.ends, tokens.after, gamma, lam))


class MaskedGAE(CriticEstimator):
    """GAE over sampled tokens, as if the observations between them took no time.

    Args:
        gamma: Discount from token to token.
        lam: How far ahead a token trusts what was sampled over what the critic says.
        whiten: Give the batch's advantages zero mean and unit variance.
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
