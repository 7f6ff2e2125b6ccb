"""What every policy loss is; ``aggregation`` weighs the tokens against each other."""

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.importance import TruncatedImportance
from vagentrl.losses.kl import kl_estimate
from vagentrl.losses.ratio import masked_mean
from vagentrl.types import TrainBatch


class PolicyLoss(ABC):
    """A loss for each sampled token; subclasses give ``per_token``.

    Args:
        importance: Correct for what sampled being another policy than the one that is scored.
    """

    reusable = True
    """Whether a batch is good for several updates: the loss allows for a policy that has moved."""

    def __init__(self, importance: TruncatedImportance | None = None) -> None:
        self.importance = importance

    @abstractmethod
    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        """``(B, T)`` to be minimised; tokens off the action mask are finite and mean nothing."""

    def __call__(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        """``(B, T)`` from the log-probs ``(B, T)`` now; off the action mask it means nothing."""
        loss = self.per_token(logprobs, batch)
        return loss if self.importance is None else loss * self.importance.weights(batch)

    def metrics(self, logprobs: Tensor, batch: TrainBatch) -> dict[str, Tensor]:
        """Scalars worth a plot, by name."""
        old, mask = batch.scores.old_logprobs, batch.rollout.action_mask
        return {"approximate_kl": approximate_kl(logprobs, old, mask)}


def approximate_kl(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, ""]:
    """How far the policy has moved from the one that was scored: KL(old || new), by k3."""
    return masked_mean(kl_estimate(old_logprobs, logprobs, "k3"), action_mask)


def check_clip(clip_low: float, clip_high: float, usual: str) -> None:
    """Refuse a range around 1 that cannot work."""
    if not 0 < clip_low <= clip_high or clip_low >= 1:
        raise ConfigError(
            f"clip_low is {clip_low} and clip_high {clip_high}, but 0 < clip_low < 1 and "
            f"clip_low <= clip_high are needed; {usual}"
        )
