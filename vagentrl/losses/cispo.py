"""CISPO: the weight of a token is clipped, its gradient never."""

from jaxtyping import Float
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.importance import TruncatedImportance
from vagentrl.losses.policy import PolicyLoss, check_clip
from vagentrl.losses.ratio import masked_mean, probability_ratio
from vagentrl.types import TrainBatch


def cispo(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    *,
    clip_low: float | None,
    clip_high: float,
) -> Float[Tensor, "B T"]:
    """The policy gradient, weighted by a clipped ratio (MiniMax-M1, arXiv 2506.13585, eq. 4, 5).

    The weight carries no gradient, so a token outside the clip range still learns; under PPO's clip
    it would not.

    Args:
        logprobs: Log-probs now, with gradient.
        old_logprobs: Log-probs when the batch was scored.
        advantages: Advantage of each token.
        clip_low: How far below 1 the weight may fall; None sets no lower limit.
        clip_high: How far above 1 the weight may rise.

    Returns:
        The loss of each token; meaningless off the action mask.
    """
    ratio = probability_ratio(logprobs.detach(), old_logprobs)
    lowest = None if clip_low is None else 1 - clip_low
    return -ratio.clamp(lowest, 1 + clip_high) * advantages * logprobs


class CISPO(PolicyLoss):
    """The policy gradient, weighted by a clipped ratio that carries no gradient.

    Args:
        clip_low: How far below 1 the weight may fall, between 0 and 1; null, as published, sets no
            lower limit.
        clip_high: How far above 1 the weight may rise; at least ``clip_low``. The paper gives no
            number.
        importance: Off-policy correction for tokens that another policy sampled.

    Raises:
        ConfigError: When the clip range cannot work.
    """

    def __init__(
        self,
        clip_low: float | None = None,
        clip_high: float = 0.28,
        importance: TruncatedImportance | None = None,
    ) -> None:
        super().__init__(importance)
        if clip_low is not None:
            check_clip(clip_low, clip_high, "clip_low null sets no lower limit")
        elif not clip_high > 0:
            raise ConfigError(f"clip_high is {clip_high}, but a ratio of 1 must not be clipped")
        self.clip_low = clip_low
        self.clip_high = clip_high

    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        return cispo(
            logprobs,
            batch.scores.old_logprobs,
            batch.credit.advantages,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )

    def metrics(self, logprobs: Tensor, batch: TrainBatch) -> dict[str, Tensor]:
        ratio = probability_ratio(logprobs, batch.scores.old_logprobs)
        clipped = ratio > 1 + self.clip_high
        if self.clip_low is not None:
            clipped = clipped | (ratio < 1 - self.clip_low)
        share = masked_mean(clipped.to(ratio.dtype), batch.rollout.action_mask)
        return super().metrics(logprobs, batch) | {"clip_fraction": share}
