"""GSPO: clip whole replies, not the tokens in them."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.importance import TruncatedImportance
from vagentrl.losses.policy import PolicyLoss, check_clip
from vagentrl.losses.ppo import clip_fraction, clipped_loss
from vagentrl.losses.ratio import probability_ratio
from vagentrl.losses.sequences import Sequence, sequence_sum
from vagentrl.types import TrainBatch


def sequence_ratio(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    turn_ids: Int[Tensor, "B T"],
    *,
    sequence: Sequence = "turn",
) -> Float[Tensor, "B T"]:
    """The geometric mean of a sequence's ratios, at each of its tokens (arXiv 2507.18071, eq. 7).

    Each token has the value of its sequence's ratio and the gradient of its own log-prob (eq. 14).
    The mean over a sequence's tokens then has the gradient of the sequence's ratio, and advantages
    may differ between tokens.
    """
    logs = (logprobs - old_logprobs).detach()
    lengths = sequence_sum(torch.ones_like(logs), action_mask, turn_ids, sequence)
    means = sequence_sum(logs, action_mask, turn_ids, sequence) / lengths.clamp(min=1)
    return probability_ratio(means, torch.zeros_like(means)) * (logprobs - logprobs.detach()).exp()


def gspo(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    turn_ids: Int[Tensor, "B T"],
    *,
    clip_low: float,
    clip_high: float,
    sequence: Sequence = "turn",
) -> Float[Tensor, "B T"]:
    """GSPO with advantages per token (arXiv 2507.18071, eq. 13) as a loss per token.

    A sequence is a turn, or all sampled tokens of a row. The loss is meaningless off the action
    mask.
    """
    ratio = sequence_ratio(logprobs, old_logprobs, action_mask, turn_ids, sequence=sequence)
    return clipped_loss(ratio, advantages, clip_low=clip_low, clip_high=clip_high)


class GSPO(PolicyLoss):
    """PPO's clip on the length-normalised ratio of a whole turn or row.

    With turns for sequences, the aggregation ``turn_mean`` lets each sequence count the same, as in
    the paper (eq. 5).

    Args:
        clip_low: How far below 1 the ratio may fall before the gradient stops. A mean over tokens
            moves far less than one token: the published range is a thousandth of PPO's.
        clip_high: How far above 1 the ratio may rise; at least ``clip_low``.
        sequence: The tokens that share a ratio: those of a ``turn``, or all of a ``row``.
        importance: Off-policy correction: weights and masks of what another policy sampled.
    """

    def __init__(
        self,
        clip_low: float = 3e-4,
        clip_high: float = 4e-4,
        sequence: Sequence = "turn",
        importance: TruncatedImportance | None = None,
    ) -> None:
        super().__init__(importance)
        check_clip(clip_low, clip_high, "3e-4 and 4e-4 are published")
        if sequence not in ("turn", "row"):
            raise ConfigError(f"sequence is {sequence!r}; choose 'turn' or 'row'")
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.sequence: Sequence = sequence

    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        return gspo(
            logprobs,
            batch.scores.old_logprobs,
            batch.credit.advantages,
            batch.rollout.action_mask,
            batch.rollout.turn_ids,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            sequence=self.sequence,
        )

    def metrics(self, logprobs: Tensor, batch: TrainBatch) -> dict[str, Tensor]:
        mask = batch.rollout.action_mask
        ratio = sequence_ratio(
            logprobs,
            batch.scores.old_logprobs,
            mask,
            batch.rollout.turn_ids,
            sequence=self.sequence,
        )
        clipped = clip_fraction(
            ratio,
            batch.credit.advantages,
            mask,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )
        return super().metrics(logprobs, batch) | {"clip_fraction": clipped}
