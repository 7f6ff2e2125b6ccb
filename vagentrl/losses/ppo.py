"""PPO's clipped loss."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.importance import TruncatedImportance
from vagentrl.losses.policy import PolicyLoss, check_clip
from vagentrl.losses.ratio import masked_mean, probability_ratio
from vagentrl.types import TrainBatch


def ppo_clip(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Float[Tensor, "B T"]:
    """PPO's clipped objective (arXiv 1707.06347, eq. 7) as a loss per token.

    Args:
        logprobs: Log-probs now, with gradient.
        old_logprobs: Log-probs when the batch was scored.
        advantages: Advantage of each token.
        clip_low: The ratio is clipped to ``[1 - clip_low, 1 + clip_high]``.
        clip_high: A higher upper limit lets unlikely tokens rise (clip-higher, DAPO: arXiv
            2503.14476, section 3.1).
        dual_clip: Bounds the loss of a token with a negative advantage at this multiple of the
            advantage (arXiv 1912.09729, eq. 5); PPO alone leaves it unbounded. None sets no bound.

    Returns:
        The loss of each token; meaningless off the action mask.
    """
    ratio = probability_ratio(logprobs, old_logprobs)
    loss = clipped_loss(ratio, advantages, clip_low=clip_low, clip_high=clip_high)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def clipped_loss(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "B T"]:
    """The larger loss of the ratio and the clipped ratio, each times minus the advantage."""
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-advantages * ratio, -advantages * clipped)


def clip_fraction(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, ""]:
    """Share of the sampled tokens that get no gradient because their ratio is clipped."""
    risen = (advantages > 0) & (ratio > 1 + clip_high)
    fallen = (advantages < 0) & (ratio < 1 - clip_low)
    return masked_mean((risen | fallen).to(ratio.dtype), action_mask)


class PPOClip(PolicyLoss):
    """PPO's clipped loss, with clip-higher and dual clip.

    Args:
        clip_low: How far below 1 the ratio may fall before the gradient stops; between 0 and 1.
        clip_high: How far above 1 the ratio may rise; at least ``clip_low``.
        dual_clip: Bound on the loss of a token with a negative advantage, in multiples of the
            advantage; above 1. Null sets no bound.
        importance: Off-policy correction for tokens that another policy sampled.

    Raises:
        ConfigError: When the clip range or ``dual_clip`` cannot work.
    """

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float | None = None,
        importance: TruncatedImportance | None = None,
    ) -> None:
        super().__init__(importance)
        check_clip(clip_low, clip_high, "0.2 and 0.2 are PPO, 0.2 and 0.28 clip-higher")
        if dual_clip is not None and dual_clip <= 1:
            raise ConfigError(
                f"dual_clip is {dual_clip}, but it bounds a ratio from above and must exceed 1; "
                "3 is usual, null turns it off"
            )
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.dual_clip = dual_clip

    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        return ppo_clip(
            logprobs,
            batch.scores.old_logprobs,
            batch.credit.advantages,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )

    def metrics(self, logprobs: Tensor, batch: TrainBatch) -> dict[str, Tensor]:
        clipped = clip_fraction(
            probability_ratio(logprobs, batch.scores.old_logprobs),
            batch.credit.advantages,
            batch.rollout.action_mask,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )
        return super().metrics(logprobs, batch) | {"clip_fraction": clipped}
