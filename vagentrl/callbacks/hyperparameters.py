"""The settings by which runs are compared."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from lightning import Callback

from vagentrl.callbacks.kl_control import KLControl
from vagentrl.modules.rollouts import rollouts_of

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule


def hyperparameters(agent: AgentModule) -> dict[str, float | str]:
    """The settings that decide how a run learns, under the same names in every run.

    TensorBoard takes names and types from the first run that it reads. So a setting that is not
    used has a value of its usual type: 0 for a number, ``none`` for a text.
    """
    data, optimizer = rollouts_of(agent.trainer), agent.optimizer_settings
    callbacks: list[Callback] = agent.trainer.callbacks  # pyright: ignore
    kl = [callback for callback in callbacks if isinstance(callback, KLControl)]
    return {
        "policy": agent.policy_name,
        "engine": type(data.engine).__name__,
        "advantage": described(agent.advantage),
        "policy_loss": described(agent.policy_loss),
        "kl": described(kl[0]) if kl else "none",
        "filter": described(data.filter),
        "context": described(data.context),
        "critic": agent.critic_kind if agent.advantage.needs_critic else "none",
        "lora_rank": 0 if agent.lora is None else agent.lora.rank,
        "actor_lr": optimizer.actor_lr,
        "critic_lr": optimizer.critic_lr,
        "entropy_coef": agent.entropy_coef,
        "temperature": data.sampling.temperature,
        "groups": data.groups,
        "group_size": data.group_size,
        "turns": data.turns or 0,
        "minibatch_size": data.minibatch_size,
        "passes": data.passes,
        "staleness": data.staleness,
        "iterations": agent.total_iterations,
        "seed": data.seed,
    }


def described(part: object) -> str:
    """The class of a part, and its settings that differ from their defaults."""
    settings = vars(part)
    parameters = inspect.signature(type(part)).parameters.values()
    changed = (
        f"{parameter.name}={_written(settings[parameter.name])}"
        for parameter in parameters
        if parameter.name in settings and settings[parameter.name] != parameter.default
    )
    listed = ", ".join(changed)
    return f"{type(part).__name__}({listed})" if listed else type(part).__name__


def _written(value: object) -> str:
    plain = isinstance(value, str | int | float | bool | None | tuple | list | dict)
    return str(value) if plain else described(value)
