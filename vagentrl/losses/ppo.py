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

    The ratio is clipped to ``[1 - clip_low, 1 + clip_high]``; a higher upper limit lets unlikely
    tokens rise (clip-higher, DAPO: arXiv 2503.14476). ``dual_clip`` bounds the loss of a bad token
    at that many times its advantage (arXiv 1912.09729, eq. 5): PPO alone leaves it unbounded.
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
    """The worse of the ratio and the clipped ratio, times the advantage, as a loss."""
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
    """Share of the sampled tokens whose gradient the clipped ratio has cut off."""
    risen = (advantages > 0) & (ratio > 1 + clip_high)
    fallen = (advantages < 0) & (ratio < 1 - clip_low)
    return masked_mean((risen | fallen).to(ratio.dtype), action_mask)


class PPOClip(PolicyLoss):
    """PPO's clipped loss, with clip-higher and dual clip.

    Args:
        clip_low: How far below 1 the ratio may fall before the gradient stops; below 1.
        clip_high: How far above 1 it may rise; at least ``clip_low``.
        dual_clip: Bound on the loss of a bad token, in multiples of its advantage; above 1.
        importance: Correct for what sampled being another policy than the one that is scored.
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
