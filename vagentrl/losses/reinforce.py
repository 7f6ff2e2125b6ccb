"""The plain policy gradient."""

from jaxtyping import Float
from torch import Tensor

from vagentrl.losses.importance import TruncatedImportance
from vagentrl.losses.policy import PolicyLoss
from vagentrl.types import TrainBatch


def reinforce(
    logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Minus the advantage times the log-prob (Williams, 1992), for each token.

    The gradient is right only while the policy is the one that sampled. Of several updates on one
    batch, only the first is.
    """
    return -advantages * logprobs


class Reinforce(PolicyLoss):
    """The plain policy gradient; meant for one update per batch.

    Args:
        importance: Off-policy correction for tokens that another policy sampled.
    """

    reusable = False

    def __init__(self, importance: TruncatedImportance | None = None) -> None:
        super().__init__(importance)

    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        return reinforce(logprobs, batch.credit.advantages)
