"""Let the critic learn the values before the policy trusts them."""

from __future__ import annotations

from lightning import LightningModule, Trainer

from vagentrl.callbacks.base import AgentCallback
from vagentrl.errors import ConfigError


class CriticWarmup(AgentCallback):
    """Only the critic learns in the first iterations; the actor stays bit-identical.

    Args:
        iterations: How many.
    """

    def __init__(self, iterations: int = 1) -> None:
        if iterations < 1:
            raise ConfigError(
                f"CriticWarmup.iterations is {iterations};"
                " give 1 or more, or leave the callback out"
            )
        self.iterations = iterations

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not pl_module.advantage.needs_critic:  # pyright: ignore
            raise ConfigError(
                f"CriticWarmup is set but model.advantage ({type(pl_module.advantage).__name__}) "
                "uses no critic; leave the callback out or choose an estimator with a critic"
            )
        pl_module.first_actor_iteration = self.iterations  # pyright: ignore
