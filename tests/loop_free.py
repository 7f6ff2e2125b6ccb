"""The root module outside of Lightning's loop: its steps are called one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar

from lightning import Trainer

from vagentrl.callbacks import AgentCallback
from vagentrl.modules.agent import AgentModule

Agent = TypeVar("Agent", bound="LoopFreeAgent")


class LoopFreeAgent(AgentModule):
    """Keeps what its steps log; the loop would average it."""

    def log_dict(self, dictionary: Any, *_: Any, **__: Any) -> None:
        self.logged = {name: float(value) for name, value in dictionary.items()}


def attach(agent: Agent, *callbacks: AgentCallback) -> Agent:
    """Give a module a trainer, which has these callbacks and takes no step."""
    trainer: Any = Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.strategy.connect(agent)
    trainer.datamodule = SimpleNamespace(report={})
    agent.trainer = trainer
    for callback in callbacks:
        callback.setup(trainer, agent, "fit")
    return agent
