"""What a behaviour may change, beyond Lightning's own hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from vagentrl.modules.agent import AgentModule
    from vagentrl.types import RolloutBatch, Scores, TrainBatch, Trajectory


class AgentCallback(Callback):
    """A Lightning callback with hooks into an iteration, called in this order."""

    def on_episode_end(self, agent: AgentModule, trajectory: Trajectory) -> None:
        """An episode of the batch ended; others are still being played."""

    def on_trajectories(
        self, agent: AgentModule, trajectories: list[Trajectory]
    ) -> list[Trajectory]:
        """All episodes of the iteration; what is returned is learned from."""
        return trajectories

    def on_scores(self, agent: AgentModule, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        """The models have scored the batch; the returned batch, with other rewards say, counts."""
        return rollout

    def policy_loss_term(
        self, agent: AgentModule, batch: TrainBatch, logprobs: Tensor
    ) -> Tensor | None:
        """A loss per token ``(B, T)`` to add to the policy's, or None.

        Args:
            agent: The module in training.
            batch: The micro-batch.
            logprobs: ``(B, T)`` log-probs under the current policy, with gradient.
        """
        return None
