"""The base class of policy losses; ``aggregation`` weighs the tokens against each other."""

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float
from torch import Tensor

from vagentrl.errors import ConfigError, ShapeError
from vagentrl.losses.importance import TruncatedImportance
from vagentrl.losses.kl import kl_estimate
from vagentrl.losses.ratio import masked_mean
from vagentrl.types import TrainBatch


class PolicyLoss(ABC):
    """A loss for each sampled token; subclasses give ``per_token``.

    Args:
        importance: Off-policy correction: weights and masks of what another policy sampled.
    """

    reusable = True
    """Whether several updates may be made on a batch: the loss allows for a policy that moved."""

    def __init__(self, importance: TruncatedImportance | None = None) -> None:
        self.importance = importance

    @abstractmethod
    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        """``(B, T)`` to be minimised; finite but meaningless off the action mask."""

    def __call__(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        """``(B, T)`` loss, given the current log-probs ``(B, T)``; meaningless off the action mask.

        Raises:
            ShapeError: When ``importance`` is set, but the batch has no importance weights.
        """
        loss = self.per_token(logprobs, batch)
        if self.importance is None:
            return loss
        if batch.scores.importance is None:
            raise ShapeError(
                f"{type(self).__name__} has importance set, but Scores.importance is None; compute "
                "it with importance.weights for the whole batch, as AgentModule.assess does"
            )
        return loss * batch.scores.importance

    def metrics(self, logprobs: Tensor, batch: TrainBatch) -> dict[str, Tensor]:
        """Scalars to log, by name."""
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
