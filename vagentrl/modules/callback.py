"""Callback hooks into an iteration, beyond Lightning's own hooks."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING

from lightning import Callback

from vagentrl.contracts import check_finite, check_tensor
from vagentrl.errors import PartError, seen
from vagentrl.types import RolloutBatch, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from vagentrl.modules.agent import AgentModule
    from vagentrl.types import Scores, TrainBatch, Turn


class AgentCallback(Callback):
    """A Lightning callback with hooks into an iteration, called in this order.

    Attributes:
        loss_name: Name under ``train/`` of the loss that `policy_loss_term` adds.
    """

    loss_name: str = "callback_loss"

    def probe(self) -> None:
        """Ask each service that the callback needs, such as a judge's endpoint, if it answers.

        ``vagentrl check`` calls this, without a run.

        Raises:
            RolloutError: When one does not answer.
        """

    def on_turn_end(self, agent: AgentModule, turn: Turn, *, training: bool) -> None:
        """A turn of an episode ended. The other episodes wait while this hook runs.

        Args:
            agent: The module in training.
            turn: The turn.
            training: True for a turn to learn from, False for one of an evaluation.
        """

    def on_episode_end(self, agent: AgentModule, trajectory: Trajectory) -> None:
        """An episode of the batch ended, while others may still be running."""

    def on_continuation_end(self, agent: AgentModule, trajectory: Trajectory) -> None:
        """A continuation of an episode ended. It only serves to estimate a value."""

    def on_trajectories(
        self, agent: AgentModule, trajectories: list[Trajectory]
    ) -> list[Trajectory]:
        """This rank has played its episodes for an iteration, or for one round of its group filter.

        Return the trajectories to learn from and to report, for example with a bonus in their
        turns. To keep an episode from being learned from, return it with ``stop="failed"`` and an
        `error`. `vagentrl.ranks.gather` collects values from the other ranks, in case the hook
        needs those.

        Args:
            agent: The module in training.
            trajectories: The episodes of this rank that did not fail.
        """
        return trajectories

    def on_report(self, agent: AgentModule, report: dict[str, float]) -> None:
        """All episodes of the iteration were collected. Add metrics about them to `report`."""

    def on_evaluation(
        self, agent: AgentModule, trajectories: list[Trajectory], report: dict[str, float]
    ) -> list[Trajectory]:
        """This rank has played its episodes of an evaluation. Return the trajectories to report.

        Args:
            agent: The module in training.
            trajectories: The episodes, all in one environment.
            report: Add metrics here to log them, without the prefix ``val/``.
        """
        return trajectories

    def on_scores(self, agent: AgentModule, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        """The models have scored the rows of all ranks.

        Return the batch to learn from, for example with adjusted rewards.
        """
        return rollout

    def policy_loss_term(
        self, agent: AgentModule, batch: TrainBatch, logprobs: Tensor
    ) -> Tensor | None:
        """A loss per token ``(B, T)`` to add to the policy loss, or None.

        Args:
            agent: The module in training.
            batch: The micro-batch.
            logprobs: ``(B, T)`` log-probs under the current policy, with gradients.
        """
        return None


class CallbackHooks:
    """Calls the hooks of all `AgentCallback`s of a trainer, in the order of the trainer's list.

    What a hook returns is checked before the next callback gets it.

    Args:
        agent: The module in training; it is passed to every hook.
    """

    def __init__(self, agent: AgentModule) -> None:
        self._agent = agent

    @property
    def callbacks(self) -> list[AgentCallback]:
        """The trainer's callbacks that are `AgentCallback`s."""
        return [c for c in self._agent.trainer.callbacks if isinstance(c, AgentCallback)]  # pyright: ignore[reportAttributeAccessIssue]

    def on_turn_end(self, turn: Turn, *, training: bool) -> None:
        for callback in self.callbacks:
            callback.on_turn_end(self._agent, turn, training=training)

    def on_episode_end(self, trajectory: Trajectory) -> None:
        for callback in self.callbacks:
            callback.on_episode_end(self._agent, trajectory)

    def on_continuation_end(self, trajectory: Trajectory) -> None:
        for callback in self.callbacks:
            callback.on_continuation_end(self._agent, trajectory)

    def on_trajectories(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        for callback in self.callbacks:
            answer = callback.on_trajectories(self._agent, trajectories)
            trajectories = _episodes(callback, "on_trajectories", answer)
        return trajectories

    def on_report(self, report: dict[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_report(self._agent, report)
            _check_report(callback, "on_report", report)

    def on_evaluation(
        self, trajectories: list[Trajectory], report: dict[str, float]
    ) -> list[Trajectory]:
        for callback in self.callbacks:
            answer = callback.on_evaluation(self._agent, trajectories, report)
            trajectories = _episodes(callback, "on_evaluation", answer)
            _check_report(callback, "on_evaluation", report)
        return trajectories

    def on_scores(self, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        for callback in self.callbacks:
            answer = callback.on_scores(self._agent, rollout, scores)
            rollout = _batch(callback, answer, rollout)
        return rollout

    def policy_loss_terms(self, batch: TrainBatch, logprobs: Tensor) -> dict[str, Tensor]:
        """The losses per token that callbacks add, each ``(B, T)``, summed by `loss_name`."""
        terms: dict[str, Tensor] = {}
        for callback in self.callbacks:
            term = callback.policy_loss_term(self._agent, batch, logprobs)
            if term is not None:
                term = _per_token(callback, term, logprobs)
                name = callback.loss_name
                terms[name] = terms[name] + term if name in terms else term
        return terms


def _episodes(callback: AgentCallback, hook: str, answer: object) -> list[Trajectory]:
    if isinstance(answer, list) and all(isinstance(item, Trajectory) for item in answer):
        return answer
    wanted = "return the list of trajectories, changed or as it was given"
    raise PartError.returned(callback, hook, answer, wanted)


def _check_report(callback: AgentCallback, hook: str, report: Mapping[str, object]) -> None:
    for name, value in report.items():
        if not isinstance(name, str) or not isinstance(value, Real):
            raise PartError(
                f"{type(callback).__name__}.{hook} left {seen(value)} in the report under "
                f"{name!r}; give a float under a string"
            )


def _batch(callback: AgentCallback, answer: object, given: RolloutBatch) -> RolloutBatch:
    hook = "on_scores"
    if not isinstance(answer, RolloutBatch):
        wanted = "return the rollout, changed by dataclasses.replace or as it was given"
        raise PartError.returned(callback, hook, answer, wanted)
    if answer is not given:
        rewards = given.rewards
        check_tensor(callback, hook, answer.rewards, "(B, T)", rewards.shape, rewards.device)
        check_finite(f"{type(callback).__name__}.{hook}", answer.rewards, "rewards must be finite")
    return answer


def _per_token(callback: AgentCallback, answer: object, like: Tensor) -> Tensor:
    hook = "policy_loss_term"
    return check_tensor(callback, hook, answer, "(B, T)", like.shape, like.device)
