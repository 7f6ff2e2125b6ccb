"""What a person gets wrong in Python ends in one sentence, where it is given or in `setup`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader

import vagentrl
from tests import notebook, toy
from vagentrl.advantages import BiLevelGAE, GroupRelative
from vagentrl.contexts import Window
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, VagentError
from vagentrl.filters import KeepAll
from vagentrl.models.lora import LoRA

Mistake = Callable[[], Any]


class Unfinished(Environment):
    """Forgets what to do with a reply."""

    def system_prompt(self) -> str:
        return ""

    def reset(self, seed: int, transition_seed: int = 0) -> Any:
        return ""


class Regression(LightningModule):
    """Learns something else."""

    def training_step(self, batch: Any, batch_idx: int) -> None: ...
    def validation_step(self, batch: Any, batch_idx: int) -> None: ...
    def configure_optimizers(self) -> None: ...


def validate(*arguments: Any) -> None:
    notebook.trainer().validate(*arguments, verbose=False)


def fit(*arguments: Any, **trainer: Any) -> None:
    notebook.trainer(**{"max_epochs": 1} | trainer).fit(*arguments)


def no_environment() -> str:
    return "sokoban"


SIZE: dict[str, Any] = {"size": 3}
AT_CONSTRUCTION: dict[str, tuple[Mistake, str]] = {
    "an environment in place of its class": (
        lambda: notebook.data(env=toy.Countdown(turn_limit=2)),
        r"data\.env is an environment already, .* functools\.partial\(Countdown, \.\.\.\)",
    ),
    "the name of an environment": (
        lambda: notebook.data(env="Sokoban"),
        r"data\.env is 'Sokoban'; give a class that derives from vagentrl\.Environment",
    ),
    "a class that is no environment": (
        lambda: notebook.data(env=dict),
        r"data\.env is dict, which is no Environment",
    ),
    "a class without all methods": (
        lambda: notebook.data(env=Unfinished),
        r"data\.env is Unfinished, which lacks step",
    ),
    "a further environment in place of its class": (
        lambda: notebook.data(val_envs={"long": toy.Countdown()}),
        r"data\.val_envs\['long'\] is an environment already",
    ),
    "the name of an engine": (
        lambda: notebook.data(engine="vllm"),
        r"data\.engine is 'vllm'; it must be of type Engine",
    ),
    "sampling as a dictionary": (
        lambda: notebook.data(sampling={"max_tokens": 4}),
        r"data\.sampling is \{'max_tokens': 4\}; it must be of type Sampling",
    ),
    "the class of a context": (
        lambda: notebook.data(context=Window),
        r"data\.context is the class Window; give an instance, such as Window\(\)",
    ),
    "the class of a filter": (lambda: notebook.data(filter=KeepAll), r"data\.filter is the class"),
    "a number as text": (lambda: notebook.data(groups="8"), r"data\.groups is '8'; .* type int"),
    "workers of no kind": (
        lambda: notebook.data(workers="threads"),
        r"data\.workers is 'threads'; choose one of 'thread', 'process'",
    ),
    "a model in place of its name": (
        lambda: notebook.agent(policy=torch.nn.Linear(1, 1)),
        r"model\.policy is Linear.*; it must be of type str",
    ),
    "the class of an estimator": (
        lambda: notebook.agent(advantage=BiLevelGAE),
        r"model\.advantage is the class BiLevelGAE; give an instance, such as BiLevelGAE\(\)",
    ),
    "the name of a loss": (
        lambda: notebook.agent(policy_loss="ppo"),
        r"model\.policy_loss is 'ppo'; it must be of type PolicyLoss",
    ),
    "torch's optimizer": (
        lambda: notebook.agent(optimizer=torch.optim.AdamW),
        r"model\.optimizer is <class 'torch\.optim.*AdamW'>; it must be of type AdamW",
    ),
    "an adapter by its rank": (
        lambda: notebook.agent(lora=8), r"model\.lora is 8; it must be of type LoRA"
    ),
    "a type of torch's": (
        lambda: notebook.agent(dtype=torch.bfloat16),
        r"model\.dtype is torch\.bfloat16; choose one of 'float32', 'bfloat16'",
    ),
    "a critic of no kind": (lambda: notebook.agent(critic="both"), r"model\.critic is 'both'"),
    "loading a module from a checkpoint": (
        lambda: vagentrl.AgentModule.load_from_checkpoint("last.ckpt"),
        r"load_from_checkpoint has no datamodule .* vagentrl\.load_policy\(checkpoint\)",
    ),
}  # fmt: skip

IN_SETUP: dict[str, tuple[Mistake, str]] = {
    "no such model": (
        lambda: validate(notebook.agent(policy="tiny-chess"), notebook.data()),
        "there is no model folder 'tiny-chess'",
    ),
    "a setting that the environment does not have": (
        lambda: validate(
            notebook.agent(), notebook.data(env=partial(toy.Countdown, **{"size": 3}))
        ),
        "environment 'train' cannot be made: .*unexpected keyword argument 'size'",
    ),
    "a function that makes no environment": (
        lambda: validate(notebook.agent(), notebook.data(env=no_environment)),
        "environment 'train' is made by <function no_environment.*, which gives a str",
    ),
    "no datamodule": (lambda: fit(notebook.agent()), r"given no datamodule, but an agent"),
    "a dataloader": (
        lambda: fit(notebook.agent(), DataLoader([0])),  # pyright: ignore
        r"given no datamodule, .*call trainer\.fit\(agent, datamodule=RolloutDataModule",
    ),
    "a datamodule for something else": (
        lambda: fit(notebook.agent(), LightningDataModule()),
        "given a LightningDataModule, but an agent",
    ),
    "a module for something else": (
        lambda: fit(Regression(), notebook.data()),
        r"given a Regression, .*call trainer\.fit\(AgentModule\(\.\.\.\), datamodule=data\)",
    ),
    "groups of one, compared": (
        lambda: fit(notebook.agent(), notebook.data(group_size=1)),
        r"data\.group_size is 1 and model\.advantage is GroupRelative",
    ),
    "half precision": (
        lambda: fit(notebook.agent(), notebook.data(), precision="bf16-true"),
        r"trainer\.precision is bf16-true, .* model\.dtype",
    ),
}


@pytest.mark.parametrize("name", AT_CONSTRUCTION)
def test_what_is_of_the_wrong_kind_is_refused_where_it_is_given(name: str):
    mistake, said = AT_CONSTRUCTION[name]
    with pytest.raises(VagentError, match=said):
        mistake()


@pytest.mark.parametrize("name", IN_SETUP)
def test_what_cannot_be_run_is_refused_before_an_episode_is_played(name: str):
    mistake, said = IN_SETUP[name]
    with pytest.raises(ConfigError, match=said):
        mistake()


def test_a_dataloader_after_a_datamodule_is_refused_too():
    agent, trainer = notebook.agent(), notebook.trainer(max_epochs=1)
    trainer.validate(agent, notebook.data(), verbose=False)
    with pytest.raises(ConfigError, match="given no datamodule"):
        trainer.fit(agent, DataLoader([0]))  # pyright: ignore


def test_what_is_right_is_not_refused():
    notebook.agent(lora=LoRA(rank=2), advantage=GroupRelative())
    notebook.data(env=lambda: toy.Countdown(turn_limit=2), context=Window(2))
