"""Checks for settings of the datamodule that conflict with each other or with the agent's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning.pytorch.strategies import DDPStrategy

from vagentrl.advantages import AdvantageEstimator, CriticEstimator
from vagentrl.contexts import Context
from vagentrl.engines import VLLMEngine, VLLMServerEngine
from vagentrl.engines.base import Engine, Sampling
from vagentrl.errors import ConfigError
from vagentrl.filters import GroupFilter, KeepAll
from vagentrl.modules.checks import check_choice, check_kind
from vagentrl.modules.fsdp2 import FSDP2
from vagentrl.rollout.source import TRAIN
from vagentrl.rollout.workers import check_factory

if TYPE_CHECKING:
    from vagentrl.losses import PolicyLoss
    from vagentrl.modules.rollouts import Rollouts

log = logging.getLogger(__name__)


def check_names(trained: Mapping[str, object], others: Mapping[str, object]) -> None:
    """Refuse a name that is given to two environments.

    Args:
        trained: The environments to train on, by name.
        others: Those that are only evaluated.
    """
    for name in trained:
        if name in others:
            raise ConfigError(
                f"data.val_envs names an environment {name!r}, which is the name of "
                f"{'data.env' if name == TRAIN else 'one in data.env'}; what is trained on is "
                "evaluated anyway: choose another name for another environment"
            )


def check_settings(data: Rollouts) -> None:
    """Raise on settings that cannot work, alone or together."""
    for name, factory in data.environments.items():
        held = "data.env.worlds" if name in data.worlds else "data.val_envs"
        key = "data.env" if name == TRAIN else f"{held}[{name!r}]"
        check_factory(factory, key)
    for name, part, kind in (
        ("engine", data.engine, Engine),
        ("val_sampling", data.val_sampling, Sampling),
        ("context", data.context, Context),
        ("filter", data.filter, GroupFilter),
    ):
        check_kind(f"data.{name}", part, kind)
    check_choice("data.workers", data.worker_kind, ("thread", "process"))
    check_kind("data.staleness", data.staleness, int)
    if data.staleness < 0:
        raise ConfigError(
            f"data.staleness is {data.staleness}; give the number of iterations to play ahead: 0 "
            "collects and learns in turn, 1 or 2 are usual beyond that"
        )
    counts = {
        "groups": data.groups,
        "group_size": data.group_size,
        "minibatch_size": data.minibatch_size,
        "passes": data.passes,
        "val_episodes": data.val_episodes,
    }
    optional = {
        "micro_batch_size": data.micro_batch_size,
        "micro_batch_tokens": data.micro_batch_tokens,
        "turns": data.turns,
    }
    counts |= {name: count for name, count in optional.items() if count is not None}
    for name, count in counts.items():
        check_kind(f"data.{name}", count, int)
        if count < 1:
            raise ConfigError(f"data.{name} is {count}; it must be at least 1")
    if data.micro_batch_tokens is not None and data.micro_batch_size is not None:
        raise ConfigError(
            f"data.micro_batch_tokens is {data.micro_batch_tokens} and data.micro_batch_size "
            f"{data.micro_batch_size}, but a pass is limited by its tokens or by its rows; set "
            "one of the two to null"
        )
    if data.sampling.temperature == 0:
        raise ConfigError(
            "data.sampling.temperature is 0: greedy replies have no log-probs to learn from; "
            "give a temperature above 0 (1.0 is usual)"
        )
    _check_collection(data)


def _check_collection(data: Rollouts) -> None:
    """Refuse settings of the rollout collection that conflict with each other."""
    if data.staleness:
        _check_staleness(data)
    if not isinstance(data.filter, KeepAll):
        _check_filter(data)
    if data.turns is not None and data.mixture is not None and data.mixture.curriculum is not None:
        raise ConfigError(
            f"data.turns is {data.turns} and the mixture's curriculum "
            f"{type(data.mixture.curriculum).__name__}, which cannot change what persistent "
            "environments play; leave out one of the two"
        )


def check_ranks(data: Rollouts, strategy: object, count: int) -> None:
    """Refuse settings that do not work with several ranks.

    Args:
        data: The datamodule.
        strategy: The trainer's strategy.
        count: The number of ranks.
    """
    if not isinstance(strategy, DDPStrategy | FSDP2):
        raise ConfigError(
            f"trainer.strategy is {type(strategy).__name__} and there are {count} ranks; several "
            "ranks are supported with DDP, DeepSpeed and our FSDP2 only: set trainer.strategy to "
            "ddp, deepspeed_stage_2 or fsdp2, or trainer.devices and trainer.num_nodes to 1"
        )
    if data.groups % count:
        raise ConfigError(
            f"data.groups is {data.groups}, which {count} ranks cannot share evenly; give a "
            f"multiple of {count}"
        )
    if isinstance(data.engine, VLLMServerEngine):
        raise ConfigError(
            f"data.engine is VLLMServerEngine and there are {count} ranks, each of which would "
            "start a server of its own, or change the weights of a server that other ranks sample "
            "from; choose VLLMFleet, whose servers all ranks share (`urls: [URL]` or `servers: 1`)"
        )
    if isinstance(data.engine, VLLMEngine) and data.engine.options["tensor_parallel_size"] > 1:
        raise ConfigError(
            f"data.engine is VLLMEngine and there are {count} ranks, each of which would spread "
            "its engine over the same first devices; set tensor_parallel_size to 1, or "
            "trainer.devices and trainer.num_nodes to 1"
        )


def _check_staleness(data: Rollouts) -> None:
    if data.turns is not None:
        raise ConfigError(
            f"data.staleness is {data.staleness} and data.turns {data.turns}: a checkpoint "
            "cannot restore environments that persist across batches while the next batch is "
            "already being played; leave out one of the two"
        )
    if data.staleness > 1 and data.filter.rounds > 1:
        raise ConfigError(
            f"data.staleness is {data.staleness} and data.filter is {type(data.filter).__name__}, "
            "which may draw more groups for an iteration when those of later ones are in play "
            "already; set data.staleness to 1, or choose a filter of one round"
        )
    if not data.engine.samples_from_copy:
        raise ConfigError(
            f"data.staleness is {data.staleness} and data.engine is "
            f"{type(data.engine).__name__}, which samples from the same weights that are being "
            "trained; set its own_copy, or choose vagentrl.engines.ReplicatedEngine or VLLMEngine"
        )


def _check_filter(data: Rollouts) -> None:
    name = type(data.filter).__name__
    if data.turns is not None:
        raise ConfigError(
            f"data.turns is {data.turns} and data.filter is {name}, which compares whole "
            "episodes; leave out one of the two"
        )
    if data.group_size == 1:
        raise ConfigError(
            f"data.group_size is 1 and data.filter is {name}: the members of a group of one "
            "never differ, so nothing would be kept; give 2 or more"
        )


def check_estimator(data: Rollouts, estimator: AdvantageEstimator) -> None:
    """Refuse episodes that an estimator cannot assign credit to."""
    name = type(estimator).__name__
    if estimator.needs_groups and data.group_size == 1:
        raise ConfigError(
            f"data.group_size is 1 and model.advantage is {name}, which compares the members "
            "of a group: every advantage would be 0; give 2 or more, or an estimator with a "
            "critic"
        )
    if estimator.needs_episodes and data.turns is not None:
        raise ConfigError(
            f"data.turns is {data.turns} and model.advantage is {name}, which needs episodes "
            "from start to end; choose an estimator with a critic, or leave data.turns out"
        )
    if data.at_limit == "bootstrap":
        _check_bootstrap(estimator)


def _check_bootstrap(estimator: AdvantageEstimator) -> None:
    name = type(estimator).__name__
    if not estimator.needs_critic:
        raise ConfigError(
            f"data.at_limit is 'bootstrap' and model.advantage is {name}, which has no critic "
            "to take the value after the limit from; set data.at_limit to end, or choose an "
            "estimator with a critic"
        )
    if isinstance(estimator, CriticEstimator) and estimator.undiscounted:
        log.warning(
            "data.at_limit is 'bootstrap' and model.advantage is %s with %s 1, so the task is "
            "undiscounted and never ends: a later success counts as much as an early one, and "
            "the advantages can shrink to 0; give a discount below 1, or set data.at_limit to "
            "end",
            name,
            " and ".join(estimator.turn_discounts),
        )


def check_replays(data: Rollouts, name: str, replays: bool, estimator: AdvantageEstimator) -> None:
    """Refuse an environment that cannot replay its episodes where a run needs that."""
    if name not in data.worlds or replays:
        return
    if estimator.continuations is not None:
        raise ConfigError(
            f"model.advantage is {type(estimator).__name__}, which continues episodes from their "
            "turns, but the environment cannot play an episode again; for hints from an endpoint "
            "set ChatHintModel.record, or choose another estimator"
        )
    if data.turns is not None:
        raise ConfigError(
            f"data.turns is {data.turns}, but the environment cannot play an episode "
            "again, so a run could not be resumed; for hints from an endpoint set "
            "ChatHintModel.record, or leave data.turns out"
        )


def check_policy_loss(data: Rollouts, loss: PolicyLoss) -> None:
    """Refuse a loss that does not correct for stale weights, and warn when a loss that is right
    for one update per batch is used for several."""
    if data.staleness and loss.importance is None:
        raise ConfigError(
            f"data.staleness is {data.staleness}, so the policy that learns is newer than the one "
            f"that sampled, and model.policy_loss is {type(loss).__name__} without importance "
            "weights; set model.policy_loss.importance to vagentrl.losses.TruncatedImportance"
        )
    rows = data.groups * data.group_size  # at least: an episode may take several rows
    updates = data.passes * max(1, round(rows / data.minibatch_size))
    if updates > 1 and not loss.reusable:
        log.warning(
            "model.policy_loss is %s, which is right for one update per batch only, and "
            "data.passes %d with data.minibatch_size %d makes about %d: give passes 1 and a "
            "minibatch_size of %d or more, or a loss with a probability ratio",
            type(loss).__name__,
            data.passes,
            data.minibatch_size,
            updates,
            rows,
        )
