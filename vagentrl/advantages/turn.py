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
    """GAE from turn to turn; every token of a turn gets the turn's advantage.

    With ``e_k`` the last sampled token of turn ``k``::

        delta_k = r_k + turn_gamma * V(e_{k+1}) - V(e_k)
        A_k = delta_k + turn_gamma * turn_lam * A_{k+1}

    ``r_k`` is all that the turn earned, KL penalties on its other tokens included: the turn is one
    action here, and nothing else would carry them. After the last turn comes ``bootstrap``.
    """
    tokens = TokenSequence.of(rewards, values, action_mask, bootstrap)
    turn_ends = tokens.turn_ends(turn_ids)
    values_K = tokens.values[turn_ends]
    turn_of, rewards_K = tokens.turns(turn_ends)
    advantages_K = gae(
        rewards_K, values_K, tokens.ends[turn_ends], tokens.after, turn_gamma, turn_lam
    )
    return tokens.credit(advantages_K[turn_of])


class TurnGAE(CriticEstimator):
    """GAE from turn to turn, one advantage for all tokens of a turn.

    Args:
        turn_gamma: Discount from turn to turn.
        turn_lam: How far ahead a turn trusts what was played over what the critic says.
        whiten: Give the batch's advantages zero mean and unit variance.
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
