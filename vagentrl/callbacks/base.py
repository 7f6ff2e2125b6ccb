"""What a callback may change, beyond Lightning's own hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from vagentrl.modules.agent import AgentModule
    from vagentrl.types import RolloutBatch, Scores, TrainBatch, Trajectory, Turn


class AgentCallback(Callback):
    """A Lightning callback with hooks into an iteration, called in this order.

    Attributes:
        loss_name: Name under ``train/`` of the loss that `policy_loss_term` adds.
    """

    loss_name: str = "callback_loss"

    def on_turn_end(self, agent: AgentModule, turn: Turn, *, training: bool) -> None:
        """A turn of an episode ended; others are being played, and wait while this runs.

        Args:
            agent: The module in training.
            turn: What was played.
            training: Whether it will be learned from; otherwise it belongs to an evaluation.
        """

    def on_episode_end(self, agent: AgentModule, trajectory: Trajectory) -> None:
        """An episode of the batch ended; others are still being played."""

    def on_trajectories(
        self, agent: AgentModule, trajectories: list[Trajectory]
    ) -> list[Trajectory]:
        """All episodes that this rank played and that did not fail, for an iteration or a part of
        it; `vagentrl.ranks.gather` tells what other ranks know of theirs.

        What is returned counts: it is learned from, reported and shown. An episode that must not
        be learned from is returned as one that failed, with an `error`.
        """
        return trajectories

    def on_report(self, agent: AgentModule, report: dict[str, float]) -> None:
        """All episodes of the iteration were collected; add to what is logged about them."""

    def on_evaluation(
        self, agent: AgentModule, trajectories: list[Trajectory], report: dict[str, float]
    ) -> list[Trajectory]:
        """This rank's episodes of an evaluation on one environment; what is returned is
        reported.

        Args:
            agent: The module in training.
            trajectories: The episodes.
            report: Add to it what is logged beside those of all ranks, without the prefix ``val/``.
        """
        return trajectories

    def on_scores(self, agent: AgentModule, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        """The models have scored the batch, the rows of all ranks; the returned batch, with other
        rewards say, counts."""
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
