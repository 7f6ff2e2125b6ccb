"""The root module outside of Lightning's loop: its steps are called one by one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from lightning import Trainer

from vagentrl.modules.agent import AgentModule
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.rollouts import Rollouts

Agent = TypeVar("Agent", bound="LoopFreeAgent")


class LoopFreeAgent(AgentModule):
    """Keeps what its steps log; the loop would average it."""

    def log_dict(self, dictionary: Any, *_: Any, **__: Any) -> None:
        self.logged = {name: float(value) for name, value in dictionary.items()}


class NoRollouts(Rollouts):
    """A datamodule that plays nothing; what the module records goes to its report."""

    def __init__(self) -> None:
        super().__init__()
        self.report = {}
        self.source: Any = SimpleNamespace(end_evaluation=lambda: None)

    def evaluate(
        self, environment: str, seeds: Sequence[int], agent: AgentModule, prefix: str = "val"
    ) -> dict[str, float]:
        raise NotImplementedError


def attach(agent: Agent, *callbacks: AgentCallback) -> Agent:
    """Give a module a trainer, which has these callbacks and takes no step."""
    trainer: Any = Trainer(
        accelerator="cpu",
        max_epochs=10**9,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.strategy.connect(agent)
    trainer.datamodule = NoRollouts()
    agent.trainer = trainer
    for callback in callbacks:
        callback.setup(trainer, agent, "fit")
    return agent
