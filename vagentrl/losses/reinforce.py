"""The plain policy gradient."""

from jaxtyping import Float
from torch import Tensor

from vagentrl.losses.importance import TruncatedImportance
from vagentrl.losses.policy import PolicyLoss
from vagentrl.types import TrainBatch


def reinforce(
    logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Minus the advantage times the log-prob (Williams, 1992).

    Right for the policy that sampled alone: with several updates on a batch the later ones are off.
    """
    return -advantages * logprobs


class Reinforce(PolicyLoss):
    """The plain policy gradient; meant for one update per batch.

    Args:
        importance: Correct for what sampled being another policy than the one that is scored.
    """

    reusable = False

    def __init__(self, importance: TruncatedImportance | None = None) -> None:
        super().__init__(importance)

    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        return reinforce(logprobs, batch.credit.advantages)
