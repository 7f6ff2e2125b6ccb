"""The base class of policy losses; ``aggregation`` weighs the tokens against each other."""

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float
from torch import Tensor

from vagentrl.contracts import check_finite, check_tensor
from vagentrl.errors import ConfigError, PartError, ShapeError
from vagentrl.losses.importance import TruncatedImportance
from vagentrl.losses.kl import kl_estimate
from vagentrl.losses.ratio import masked_mean
from vagentrl.types import TrainBatch


class PolicyLoss(ABC):
    """A loss for each sampled token; subclasses write ``per_token``.

    The trainer calls the loss itself, on each micro-batch; it weighs the tokens (`Aggregation`) and
    adds them up.

    Args:
        importance: Off-policy correction: weights and masks of what another policy sampled.
    """

    reusable = True
    """Whether several updates may be made on a batch: the loss allows for a policy that moved."""
    importance: TruncatedImportance | None = None

    def __init__(self, importance: TruncatedImportance | None = None) -> None:
        self.importance = importance

    @abstractmethod
    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        """The loss of each token, a float tensor ``(B, T)`` to be minimised.

        Off the action mask it is ignored, but must be finite.

        Args:
            logprobs: ``(B, T)`` log-prob of each token under the current policy, with gradient.
            batch: Rows of the iteration. ``batch.scores.old_logprobs`` are the log-probs before the
                update, ``batch.credit.advantages`` the advantages, ``batch.rollout.action_mask`` is
                True on sampled tokens; all ``(B, T)``, without gradient.
        """

    def __call__(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        """The loss ``(B, T)`` that the subclass gives, checked and weighed by ``importance``.

        Raises:
            PartError: When ``per_token`` returned what cannot be used.
            ShapeError: When ``importance`` is set, but the batch has no importance weights.
        """
        loss = self._checked(logprobs, self.per_token(logprobs, batch))
        if self.importance is None:
            return loss
        if batch.scores.importance is None:
            raise ShapeError(
                f"{type(self).__name__} has importance set, but Scores.importance is None; compute "
                "it with importance.weights for the whole batch, as AgentModule.assess does"
            )
        return loss * batch.scores.importance

    def _checked(self, logprobs: Tensor, answer: object) -> Tensor:
        loss = check_tensor(self, "per_token", answer, "(B, T)", logprobs.shape, logprobs.device)
        name = f"{type(self).__name__}.per_token"
        if logprobs.requires_grad and not loss.requires_grad:
            raise PartError(
                f"{name} returned a loss without a gradient; compute it from `logprobs`, and "
                "detach only what must not learn"
            )
        # Elsewhere it would wait for the device; a gradient that is not finite shows there too.
        if loss.device.type == "cpu" and logprobs.isfinite().all():
            check_finite(name, loss, "it must be finite off the action mask too: mask it first")
        return loss

    def metrics(self, logprobs: Tensor, batch: TrainBatch) -> dict[str, Tensor]:
        """Scalar tensors to log under ``train/``, by name; called without gradient."""
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
