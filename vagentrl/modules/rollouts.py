"""The interface between the agent with its callbacks and the datamodule that plays episodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from lightning import LightningDataModule, Trainer

from vagentrl.environment import Environment
from vagentrl.errors import ConfigError

if TYPE_CHECKING:
    from vagentrl.contexts import Context
    from vagentrl.engines.base import Engine, Sampling
    from vagentrl.filters import GroupFilter
    from vagentrl.mixture import Mixture
    from vagentrl.modules.agent import AgentModule
    from vagentrl.rollout.collector import Collector
    from vagentrl.rollout.renderer import Renderer
    from vagentrl.rollout.source import EpisodeSource
    from vagentrl.types import AtLimit, TrainBatch, Trajectory


class Rollouts(LightningDataModule):
    """A datamodule whose batches are episodes of the policy in training.

    Attributes:
        environments: Factory of each environment, by name.
        worlds: Names of the environments to learn on; ``train`` if there is only one.
        mixture: What `data.env` makes if that is several environments; None for a single one.
        engine: Samples the replies.
        sampling: How replies are sampled in training.
        val_sampling: How they are sampled in evaluations.
        context: Which earlier turns the model sees when it replies.
        groups: Initial states in an iteration, over all ranks.
        group_size: Episodes from each initial state.
        turns: Turns to play in each persistent environment; None plays whole episodes.
        at_limit: Whether a limit ends the task, or a truncated episode is bootstrapped.
        filter: Chooses the groups to learn from.
        worker_kind: ``thread`` or ``process``, where environments run.
        staleness: Number of iterations whose episodes are played while the actor learns.
        minibatch_size: Rows in one optimizer step, over all ranks.
        micro_batch_size: Rows in one forward and backward pass of a rank; None if tokens count.
        micro_batch_tokens: Most tokens in one forward and backward pass of a rank; None if rows
            count.
        passes: Passes over a collected batch.
        val_episodes: Episodes of each environment in an evaluation.
        seed: Determines all episodes and the order of minibatches.
        renderer: Turns text and images into tokens; available after `setup`.
        collector: Plays episodes; available after `setup`.
        source: Decides which episodes are played; available after `setup`.
        report: Metrics of the current iteration's collection; they are logged when its update
            starts.
        trajectories: The episodes of the current iteration.
        learned: Those of them that are learned from, in the order of their numbers in `assessed`.
        assessed: The rows of the current iteration with their scores and their credit; None if
            nothing is learned.
        evaluated: The episodes of the last evaluation, by environment.
    """

    environments: dict[str, Callable[[], Environment]]
    worlds: tuple[str, ...]
    mixture: Mixture | None
    engine: Engine
    sampling: Sampling
    val_sampling: Sampling
    context: Context
    groups: int
    group_size: int
    turns: int | None
    at_limit: AtLimit
    filter: GroupFilter
    worker_kind: Literal["thread", "process"]
    staleness: int
    minibatch_size: int
    micro_batch_size: int | None
    micro_batch_tokens: int | None
    passes: int
    val_episodes: int
    seed: int
    renderer: Renderer
    collector: Collector
    source: EpisodeSource
    report: dict[str, float]
    trajectories: list[Trajectory]
    learned: list[Trajectory]
    assessed: TrainBatch | None
    evaluated: dict[str, list[Trajectory]]

    @abstractmethod
    def evaluate(
        self, environment: str, seeds: Sequence[int], agent: AgentModule, prefix: str = "val"
    ) -> dict[str, float]:
        """Play evaluation episodes from these seeds; returns metrics with names ``prefix/...``."""


def rollouts_of(trainer: Trainer) -> Rollouts:
    """The trainer's datamodule, which plays the episodes.

    Raises:
        ConfigError: When the trainer has no datamodule, or one of another class.
    """
    data = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(data, Rollouts):
        raise wrong_data("no datamodule" if data is None else f"a {type(data).__name__}")
    return data


def attached(data: LightningDataModule) -> Trainer:
    """The trainer of a datamodule; Lightning attaches it before it calls `setup`."""
    assert data.trainer is not None
    return data.trainer


def wrong_data(given: str) -> ConfigError:
    """The error of a trainer that was given something else than a RolloutDataModule."""
    return ConfigError(
        f"the trainer was given {given}, but an agent learns from episodes that a "
        "RolloutDataModule plays; call trainer.fit(agent, datamodule=RolloutDataModule(...)), or "
        "validate or test likewise"
    )
