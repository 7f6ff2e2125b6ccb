"""Base classes of the advantage estimators: with a critic, and without one."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from vagentrl.advantages.streams import Streams
from vagentrl.advantages.whitening import whiten
from vagentrl.errors import ConfigError
from vagentrl.types import Credit, RolloutBatch, Scores


class AdvantageEstimator(ABC):
    """Estimates how much better each sampled token was than expected.

    Attributes:
        needs_critic: Whether it reads ``scores.values``.
        needs_groups: Whether it compares the members of a group, so that a group needs several.
        needs_episodes: Whether it compares whole episodes. Without a critic, nothing stands in for
            the part of an episode that another batch holds.
    """

    needs_critic: ClassVar[bool]
    needs_groups: bool = False
    needs_episodes: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        """Credit ``(B, T)`` of every sampled token, 0 on all others."""


class CriticEstimator(AdvantageEstimator):
    """An estimator that compares with a critic's values; subclasses implement ``estimate``.

    Attributes:
        whiten: Whether the batch's advantages get zero mean and unit variance.
        discounts: Keyword arguments of the subclass's function.
        turn_discounts: Names of the discounts between the value of a turn and that of the next.
    """

    needs_critic = True
    turn_discounts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, whiten: bool, **discounts: float) -> None:
        check_discounts(**discounts)
        self.whiten = whiten
        self.discounts = discounts

    @property
    def undiscounted(self) -> bool:
        """Whether a reward counts in full however many turns away it is."""
        return {self.discounts[name] for name in self.turn_discounts} == {1}

    @abstractmethod
    def estimate(
        self,
        rewards: Tensor,
        values: Tensor,
        action_mask: Tensor,
        turn_ids: Tensor,
        bootstrap: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns ``(N, S)``.

        All arguments are ``(N, S)``, one stream of sampled tokens per trajectory, except
        ``bootstrap`` ``(N,)``, the value after the last token.
        """

    @torch.no_grad()
    def __call__(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        """Credit of every sampled token.

        Raises:
            ConfigError: When ``scores`` has no values.
        """
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


class EpisodeEstimator(AdvantageEstimator):
    """An estimator that compares whole episodes; subclasses implement ``estimate``.

    There is no value to bootstrap from: a truncated episode counts for the rewards it has.
    """

    needs_critic = False
    needs_episodes = True

    @abstractmethod
    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        """Advantages ``(N, S)``, one stream of tokens per trajectory."""

    @torch.no_grad()
    def __call__(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        streams = Streams.of(rollout)
        return Credit(streams.scatter(self.estimate(rollout, streams)))


def check_discounts(**discounts: float) -> None:
    """Raise a `ConfigError` that names the discount which is not between 0 and 1."""
    for name, value in discounts.items():
        if not 0 <= value <= 1:
            raise ConfigError(
                f"{name} is {value}, but a discount lies between 0 and 1; "
                "1 counts the whole future, 0 none of it"
            )


def _bootstrap(rollout: RolloutBatch, values: Tensor) -> Tensor:
    """The value after each trajectory's end ``(N,)``, 0 where it terminated."""
    after = values.flatten()[rollout.bootstrap_index.clamp(min=0)]
    return torch.where(rollout.bootstrap_index < 0, 0.0, after)
