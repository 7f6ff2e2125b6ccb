"""Off-policy correction: importance weights and masks for tokens that another policy sampled."""

import logging
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.ratio import masked_mean, probability_ratio
from vagentrl.losses.sequences import sequence_sum, trajectory_sum
from vagentrl.types import RolloutBatch, Scores

log = logging.getLogger(__name__)

Level = Literal["token", "turn", "row", "trajectory"]


def importance_ratio(
    old_logprobs: Float[Tensor, "B T"],
    rollout_logprobs: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    turn_ids: Int[Tensor, "B T"],
    trajectory_ids: Int[Tensor, " B"],
    *,
    level: Level,
    geometric: bool = False,
) -> Float[Tensor, "B T"]:
    """``pi_old / pi_rollout`` at each sampled token: its own, or that of its whole sequence.

    The ratio of a sequence (a turn, row or trajectory) is the product of its tokens' ratios, or
    with ``geometric`` their geometric mean. The product makes expectations over whole sequences
    exact, and its variance grows with their length. The ratio of a single token has little
    variance and is biased: it ignores that another policy sampled the tokens before it as well.
    The geometric mean does not depend on length (GSPO, arXiv 2507.18071, eq. 7): it says how far
    engine and trainer disagree per token.

    The result is 1 off the action mask at level ``token``, and meaningless there at others.
    """
    logs = (old_logprobs - rollout_logprobs).where(action_mask, 0.0)

    def total(values: Tensor) -> Tensor:
        if level == "token":
            return values
        if level == "trajectory":
            return trajectory_sum(values.sum(1), trajectory_ids)[:, None].expand_as(values)
        return sequence_sum(values, action_mask, turn_ids, level)

    sums = total(logs)
    if geometric:
        sums = sums / total(action_mask.to(logs.dtype)).clamp(min=1)
    return probability_ratio(sums, torch.zeros_like(sums))


@dataclass(frozen=True)
class ImportanceMask:
    """Leaves out tokens, or whole sequences, whose ratio ``pi_old / pi_rollout`` is out of range.

    Args:
        level: What is left out: a ``token`` by its own ratio, or all tokens of a ``turn``, ``row``
            or ``trajectory`` by the product of its tokens' ratios.
        low: Least ratio that is kept; at most 1. Null sets no lower limit.
        high: Greatest ratio that is kept; at least 1. Null sets no upper limit.
        geometric: Take the geometric mean of a sequence's ratios instead of their product.
    """

    level: Level = "token"
    low: float | None = None
    high: float | None = None
    geometric: bool = False

    def __post_init__(self) -> None:
        _check_level("ImportanceMask", self.level, self.geometric)
        if self.low is None and self.high is None:
            raise ConfigError(
                "ImportanceMask has neither low nor high, so it leaves nothing out; give at least "
                "one, for instance low 0.5 and high 5 (IcePop), or remove the mask"
            )
        _check_range("low", self.low, "high", self.high)

    def keeps(self, rollout: RolloutBatch, scores: Scores) -> Tensor:
        """``(B, T)`` True on tokens that are in range."""
        ratio = _ratio(rollout, scores, self.level, self.geometric)
        kept = torch.ones_like(rollout.action_mask)
        if self.low is not None:
            kept &= ratio >= self.low
        if self.high is not None:
            kept &= ratio <= self.high
        return kept


@dataclass(frozen=True)
class TruncatedImportance:
    """Weighs each token by ``pi_old / pi_rollout``, within limits (IMPALA, arXiv 1802.01561).

    The gradient of a policy loss belongs to the policy that the trainer scores, but an engine with
    other kernels, or older weights, sampled the tokens. The weight corrects for the difference, the
    cap bounds what one sample may weigh, and the masks leave out samples that are too far off. The
    weights carry no gradient. They apply to the policy loss alone, not to the entropy bonus, the KL
    term or the value loss.

    Args:
        level: ``token`` takes each token's own ratio; ``turn``, ``row`` and ``trajectory`` take the
            product of the ratios in it.
        cap: Greatest weight; at least 1. Null sets no upper limit.
        floor: Least weight; at most 1. With floor and cap 1 every weight is 1, and only the masks
            act.
        geometric: Take the geometric mean of a sequence's ratios instead of their product.
        masks: A token that any of these masks leaves out weighs 0.
        normalize: Divide the weights by their mean, so that the size of a step does not depend on
            how much is masked or capped (self-normalised importance sampling). Without it, what is
            masked still counts in the denominators of the loss.
    """

    level: Level = "token"
    cap: float | None = 2.0
    floor: float | None = None
    geometric: bool = False
    masks: tuple[ImportanceMask, ...] = ()
    normalize: bool = False

    def __post_init__(self) -> None:
        _check_level("TruncatedImportance", self.level, self.geometric)
        _check_range("floor", self.floor, "cap", self.cap)

    @torch.no_grad()
    def ratio(self, rollout: RolloutBatch, scores: Scores) -> Tensor:
        """``(B, T)`` the ratios, without limits."""
        return _ratio(rollout, scores, self.level, self.geometric)

    @torch.no_grad()
    def kept(self, rollout: RolloutBatch, scores: Scores) -> Tensor:
        """``(B, T)`` True on sampled tokens that no mask leaves out."""
        kept = rollout.action_mask
        for mask in self.masks:
            kept = kept & mask.keeps(rollout, scores)
        return kept

    def _limited(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(self.floor or 0.0, self.cap)

    @torch.no_grad()
    def weights(self, rollout: RolloutBatch, scores: Scores, counts: Tensor) -> Tensor:
        """``(B, T)`` what multiplies the policy loss of each token.

        Compute them for a whole batch, before it is split into minibatches: a trajectory may have
        rows in several, and the mean is the batch's.

        Args:
            rollout: The whole batch.
            scores: Its scores.
            counts: ``(B, T)`` aggregation weights of the whole batch: how much each token counts in
                the mean that ``normalize`` divides by.
        """
        kept = self.kept(rollout, scores)
        if rollout.action_mask.any() and not kept.any():
            log.warning(
                "every sampled token of the batch is masked, so the policy loss is 0: importance "
                "masks %s leave none of the ratios in; widen them, or look at rollout/logprob_gap "
                "for why engine and trainer disagree",
                self.masks,
            )
        weights = self._limited(self.ratio(rollout, scores)) * kept
        if self.normalize:
            weights = weights * (counts.sum() / (counts * weights).sum().clamp(min=1e-9))
        return weights

    def metrics(self, rollout: RolloutBatch, scores: Scores) -> dict[str, Tensor]:
        """Of the sampled tokens of a whole batch, before weights are normalised.

        Returns:
            ``importance_weight``, the mean weight, in which masked tokens count 0;
            ``importance_capped`` and ``importance_floored``, the shares of tokens that are kept and
            at a limit; ``importance_masked``, the share that is left out; and
            ``importance_sample_size``, the effective sample size as a share,
            ``(sum w)^2 / (n sum w^2)``: 1 when all tokens weigh the same.
        """
        sampled = rollout.action_mask
        ratio, kept = self.ratio(rollout, scores), self.kept(rollout, scores)
        weights = self._limited(ratio) * kept
        mean, square = masked_mean(weights, sampled), masked_mean(weights.square(), sampled)

        def share(tokens: Tensor) -> Tensor:
            return masked_mean(tokens.to(ratio.dtype), sampled)

        return {
            "importance_weight": mean,
            "importance_capped": share(kept & (ratio > (self.cap or torch.inf))),
            "importance_floored": share(kept & (ratio < (self.floor or 0.0))),
            "importance_masked": share(~kept),
            "importance_sample_size": mean.square() / square.clamp(min=1e-20),
        }


def _ratio(rollout: RolloutBatch, scores: Scores, level: Level, geometric: bool) -> Tensor:
    return importance_ratio(
        scores.old_logprobs,
        rollout.rollout_logprobs,
        rollout.action_mask,
        rollout.turn_ids,
        rollout.trajectory_ids,
        level=level,
        geometric=geometric,
    )


def _check_level(owner: str, level: Level, geometric: bool) -> None:
    if level not in get_args(Level):
        raise ConfigError(
            f"{owner}'s level is {level!r}; choose one of {', '.join(get_args(Level))}"
        )
    if level == "token" and geometric:
        raise ConfigError(
            f"{owner} has geometric true and level 'token', but the mean of one token is itself; "
            "choose level turn, row or trajectory, or leave geometric out"
        )


def _check_range(low_name: str, low: float | None, high_name: str, high: float | None) -> None:
    """Samples on which engine and trainer agree have ratio 1 and must not be changed."""
    if low is not None and not 0 < low <= 1:
        raise ConfigError(
            f"{low_name} is {low}, but samples on which engine and trainer agree have the ratio 1, "
            f"which must be inside the limits; give {low_name} above 0 and at most 1, or null"
        )
    if high is not None and not high >= 1:
        raise ConfigError(
            f"{high_name} is {high}, but samples on which engine and trainer agree have the ratio "
            f"1, which must be inside the limits; give {high_name} at least 1, or null"
        )
