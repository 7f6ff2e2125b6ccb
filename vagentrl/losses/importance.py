"""Truncated importance sampling: the engine that sampled is not quite the policy that learns."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.ratio import masked_mean, probability_ratio
from vagentrl.losses.sequences import sequence_sum
from vagentrl.types import RolloutBatch, Scores, TrainBatch

Level = Literal["token", "turn", "row"]


def importance_ratio(
    old_logprobs: Float[Tensor, "B T"],
    rollout_logprobs: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    turn_ids: Int[Tensor, "B T"],
    *,
    level: Level,
) -> Float[Tensor, "B T"]:
    """``pi_old / pi_rollout`` at each sampled token: its own, or its turn's or row's product.

    The product makes the expectation over whole replies right and varies the more the longer they
    are; the ratio of single tokens is biased but tame. Off the action mask it means nothing.
    """
    if level == "token":
        return probability_ratio(old_logprobs, rollout_logprobs)
    logs = sequence_sum(old_logprobs - rollout_logprobs, action_mask, turn_ids, level)
    return probability_ratio(logs, torch.zeros_like(logs))


@dataclass(frozen=True)
class TruncatedImportance:
    """Weigh each token by ``min(cap, pi_old / pi_rollout)`` (as IMPALA does, arXiv 1802.01561).

    The gradient of a policy loss belongs to the policy that the trainer scores, but an engine with
    other kernels or weights did the sampling. The weight corrects for it; the cap bounds what one
    sample may weigh. It carries no gradient.

    Args:
        level: ``token`` takes each token's own ratio, ``turn`` and ``row`` the product over the
            sampled tokens of its turn or row.
        cap: Greatest weight; at least 1, or samples that agree would be cut as well.
    """

    level: Level = "token"
    cap: float = 2.0

    def __post_init__(self) -> None:
        if self.level not in ("token", "turn", "row"):
            raise ConfigError(f"level is {self.level!r}; choose 'token', 'turn' or 'row'")
        if not self.cap >= 1:
            raise ConfigError(
                f"cap is {self.cap}, but samples on which engine and trainer agree weigh 1 and "
                "must not be cut; 2 is usual"
            )

    @torch.no_grad()
    def ratio(self, rollout: RolloutBatch, scores: Scores) -> Tensor:
        """``(B, T)``, not capped."""
        return importance_ratio(
            scores.old_logprobs,
            rollout.rollout_logprobs,
            rollout.action_mask,
            rollout.turn_ids,
            level=self.level,
        )

    def weights(self, batch: TrainBatch) -> Tensor:
        """``(B, T)`` between 0 and ``cap``."""
        return self.ratio(batch.rollout, batch.scores).clamp(max=self.cap)

    def metrics(self, rollout: RolloutBatch, scores: Scores) -> dict[str, Tensor]:
        """Over the sampled tokens of a whole batch: the mean weight, the share that is capped, and
        the effective sample size as a share, ``(sum w)^2 / (n sum w^2)``: 1 when all weigh the
        same."""
        ratio, mask = self.ratio(rollout, scores), rollout.action_mask
        weights = ratio.clamp(max=self.cap)
        mean, square = masked_mean(weights, mask), masked_mean(weights.square(), mask)
        return {
            "importance_weight": mean,
            "importance_capped": masked_mean((ratio > self.cap).to(ratio.dtype), mask),
            "importance_sample_size": mean.square() / square.clamp(min=1e-20),
        }
