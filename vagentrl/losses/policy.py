"""Policy losses, token by token; ``aggregation`` weighs the tokens against each other."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.kl import kl_estimate
from vagentrl.losses.ratio import masked_mean, probability_ratio


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
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def clip_fraction(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, ""]:
    """Share of the sampled tokens whose gradient the clipped ratio has cut off."""
    ratio = probability_ratio(logprobs, old_logprobs)
    risen = (advantages > 0) & (ratio > 1 + clip_high)
    fallen = (advantages < 0) & (ratio < 1 - clip_low)
    return masked_mean((risen | fallen).to(logprobs.dtype), action_mask)


def approximate_kl(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, ""]:
    """How far the policy has moved from the one that sampled: KL(old || new), by k3."""
    return masked_mean(kl_estimate(old_logprobs, logprobs, "k3"), action_mask)


class PolicyLoss(ABC):
    """A loss per token from log-probs now, log-probs at the start of the update, and credit."""

    @abstractmethod
    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
        """``(B, T)`` each, to be minimised; tokens off the action mask mean nothing."""

    def metrics(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, action_mask: Tensor
    ) -> dict[str, Tensor]:
        """Scalars worth a plot, by name."""
        return {"approximate_kl": approximate_kl(logprobs, old_logprobs, action_mask)}


class PPOClip(PolicyLoss):
    """PPO's clipped loss, with clip-higher and dual clip.

    Args:
        clip_low: How far below 1 the ratio may fall before the gradient stops; below 1.
        clip_high: How far above 1 it may rise; at least ``clip_low``.
        dual_clip: Bound on the loss of a bad token, in multiples of its advantage; above 1.
    """

    def __init__(
        self, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
    ) -> None:
        if not 0 < clip_low <= clip_high or clip_low >= 1:
            raise ConfigError(
                f"clip_low is {clip_low} and clip_high {clip_high}, but 0 < clip_low < 1 and "
                "clip_low <= clip_high are needed; 0.2 and 0.2 are PPO, 0.2 and 0.28 clip-higher"
            )
        if dual_clip is not None and dual_clip <= 1:
            raise ConfigError(
                f"dual_clip is {dual_clip}, but it bounds a ratio from above and must exceed 1; "
                "3 is usual, null turns it off"
            )
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.dual_clip = dual_clip

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
        return ppo_clip(
            logprobs,
            old_logprobs,
            advantages,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )

    def metrics(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, action_mask: Tensor
    ) -> dict[str, Tensor]:
        clipped = clip_fraction(
            logprobs,
            old_logprobs,
            advantages,
            action_mask,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )
        return super().metrics(logprobs, old_logprobs, advantages, action_mask) | {
            "clip_fraction": clipped
        }
