"""What every advantage estimator is, and what those with a critic share."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from vagentrl.advantages.streams import Streams
from vagentrl.advantages.whitening import whiten
from vagentrl.errors import ConfigError
from vagentrl.types import Credit, RolloutBatch, Scores


class AdvantageEstimator(ABC):
    """Says how much better each sampled token was than expected.

    Attributes:
        needs_critic: Whether ``scores.values`` is read.
    """

    needs_critic: ClassVar[bool]

    @abstractmethod
    def __call__(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        """Credit for every sampled token, 0 on all others."""


class CriticEstimator(AdvantageEstimator):
    """An estimator that compares with a critic's values; subclasses give ``estimate``.

    Attributes:
        whiten: Give the batch's advantages zero mean and unit variance.
        discounts: What the subclass passes on to its function, by name.
    """

    needs_critic = True

    def __init__(self, whiten: bool, **discounts: float) -> None:
        for name, value in discounts.items():
            if not 0 <= value <= 1:
                raise ConfigError(
                    f"{name} is {value}, but a discount lies between 0 and 1; "
                    "1 counts the whole future, 0 none of it"
                )
        self.whiten = whiten
        self.discounts = discounts

    @abstractmethod
    def estimate(
        self,
        rewards: Tensor,
        values: Tensor,
        action_mask: Tensor,
        turn_ids: Tensor,
        bootstrap: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns ``(N, S)``, one stream of tokens per trajectory."""

    @torch.no_grad()
    def __call__(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        if scores.values is None:
            raise ConfigError(
                f"{type(self).__name__} reads the critic's values, but there is no critic; "
                "configure one, or an estimator that needs none, such as GroupRelative"
            )
        streams = Streams.of(rollout)
        advantages, returns = self.estimate(
            streams.gather(rollout.rewards),
            streams.gather(scores.values),
            streams.gather(rollout.action_mask),
            streams.gather(rollout.turn_ids, fill=-1),
            _bootstrap(rollout, scores.values),
        )
        advantages = streams.scatter(advantages)
        if self.whiten:
            advantages = whiten(advantages, rollout.action_mask)
        return Credit(advantages, streams.scatter(returns))


def _bootstrap(rollout: RolloutBatch, values: Tensor) -> Tensor:
    """The value after each trajectory's end ``(N,)``, 0 where it terminated."""
    after = values.flatten()[rollout.bootstrap_index.clamp(min=0)]
    return torch.where(rollout.bootstrap_index < 0, 0.0, after)
