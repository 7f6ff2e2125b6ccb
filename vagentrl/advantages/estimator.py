"""Base classes of the advantage estimators: with a critic, and without one."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from vagentrl.advantages.continuations import Continuations
from vagentrl.advantages.discounts import check_discounts
from vagentrl.advantages.streams import Streams
from vagentrl.advantages.whitening import whiten
from vagentrl.contracts import check_finite, check_tensor
from vagentrl.errors import ConfigError, PartError
from vagentrl.types import Credit, RolloutBatch, Scores


class AdvantageEstimator(ABC):
    """Estimates how much better each sampled token was than expected.

    Derive from `CriticEstimator` or `EpisodeEstimator`, which lay the batch out as one stream of
    sampled tokens per trajectory, or write `credit` for the rows as they are. The trainer calls
    the estimator itself, once an iteration and without gradient.

    Attributes:
        needs_critic: Whether it reads ``scores.values``.
        needs_groups: Whether it compares the members of a group, so that a group needs several.
        needs_episodes: Whether it compares whole episodes. Without a critic, nothing stands in for
            the part of an episode that another batch holds.
        continuations: Continuations of the episodes that it wants to be played; None for none.
    """

    needs_critic: ClassVar[bool] = False
    needs_groups: bool = False
    needs_episodes: ClassVar[bool] = False
    continuations: Continuations | None = None

    @abstractmethod
    def credit(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        """Credit ``(B, T)`` for every sampled token, and 0 for all others.

        Args:
            rollout: All rows of the iteration, rewards as the callbacks left them.
            scores: What the models said about them; ``values`` is None without a critic.
        """

    @torch.no_grad()
    def __call__(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        """The credit ``(B, T)`` that the subclass gives, checked.

        Raises:
            ConfigError: When it needs a critic, but ``scores`` has no values.
            PartError: When the subclass returned what cannot be used.
        """
        name = type(self).__name__
        if self.needs_critic and scores.values is None:
            raise ConfigError(
                f"{name} reads the critic's values, but there is no critic; "
                "configure one, or an estimator that needs none, such as GroupRelative"
            )
        credit = self.credit(rollout, scores)
        if not isinstance(credit, Credit):
            raise PartError.returned(self, "credit", credit, "return Credit(advantages, returns)")
        if self.needs_critic and credit.returns is None:
            raise PartError(
                f"{name}.credit returned no returns, but needs_critic is True; return "
                "Credit(advantages, returns), or set needs_critic to False"
            )
        shape, device = rollout.input_ids.shape, rollout.input_ids.device
        for tensor in (credit.advantages, credit.returns):
            if tensor is not None:
                check_tensor(self, "credit", tensor, "(B, T)", shape, device)
                check_finite(name, tensor, "advantages and returns must be finite")
        return credit


class CriticEstimator(AdvantageEstimator):
    """An estimator that compares with a critic's values; subclasses write ``estimate``.

    Args:
        whiten: Whether the batch's advantages get zero mean and unit variance.
        **discounts: Settings between 0 and 1, by name; kept to be passed to a pure function.

    Attributes:
        turn_discounts: Names of the discounts between the value of a turn and that of the next.
    """

    needs_critic = True
    turn_discounts: ClassVar[tuple[str, ...]] = ()
    whiten: bool | None = None
    """None where a subclass forgot to call ``__init__``."""

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
        """Advantages and returns, each a float tensor ``(N, S)``.

        Row ``n`` holds the sampled tokens of trajectory ``n`` in the order in which they were
        sampled, prompts and observations left out; ``S`` is the length of the longest trajectory,
        and shorter ones are padded on the right.

        Args:
            rewards: ``(N, S)`` float; a turn's reward is at its last token.
            values: ``(N, S)`` float; the critic's value of the state before each token.
            action_mask: ``(N, S)`` bool; True on tokens, False on padding.
            turn_ids: ``(N, S)`` int; number of the turn of each token, -1 on padding.
            bootstrap: ``(N,)`` float; the value after the last token, 0 where the episode
                terminated.

        Returns:
            Advantages, and the returns that the critic regresses to (mostly advantages + values);
            what they hold on padding is ignored.
        """

    def credit(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        if self.whiten is None:
            raise PartError(
                f"{type(self).__name__}.__init__ does not call its base's; begin it with "
                "super().__init__(whiten=…)"
            )
        assert scores.values is not None
        streams = Streams.of(rollout)
        estimates = self.estimate(
            streams.gather(rollout.rewards),
            streams.gather(scores.values),
            streams.gather(rollout.action_mask),
            streams.gather(rollout.turn_ids, fill=-1),
            _bootstrap(rollout, scores.values),
        )
        if not isinstance(estimates, tuple) or len(estimates) != 2:
            wanted = "return two tensors (N, S): advantages and returns"
            raise PartError.returned(self, "estimate", estimates, wanted)
        advantages, returns = (
            streams.scatter(streams.check(self, "estimate", estimate)) for estimate in estimates
        )
        if self.whiten:
            advantages = whiten(advantages, rollout.action_mask)
        return Credit(advantages, returns)


class EpisodeEstimator(AdvantageEstimator):
    """An estimator that compares whole episodes; subclasses write ``estimate``.

    There is no value to bootstrap from: a truncated episode counts for the rewards it has.
    """

    needs_episodes = True

    @abstractmethod
    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        """Advantages, a float tensor ``(N, S)``.

        Row ``n`` holds the sampled tokens of trajectory ``n``, as `CriticEstimator.estimate` says.

        Args:
            rollout: All rows of the iteration; ``rollout.group_ids`` is the group ``(N,)`` of each
                trajectory.
            streams: ``streams.gather(rollout.rewards)`` lays a ``(B, T)`` tensor out as ``(N, S)``,
                0 on padding.
        """

    def credit(self, rollout: RolloutBatch, scores: Scores) -> Credit:
        streams = Streams.of(rollout)
        advantages = streams.check(self, "estimate", self.estimate(rollout, streams))
        return Credit(streams.scatter(advantages))


def _bootstrap(rollout: RolloutBatch, values: Tensor) -> Tensor:
    """The value after each trajectory's end ``(N,)``, 0 where it terminated."""
    after = values.flatten()[rollout.bootstrap_index.clamp(min=0)]
    return torch.where(rollout.bootstrap_index < 0, 0.0, after)
