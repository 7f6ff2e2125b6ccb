"""What the commands do; imported by `vagentrl.cli` when one of them is chosen."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jsonargparse import auto_cli
from lightning import Callback, Trainer
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from transformers.utils.logging import disable_progress_bar

from vagentrl import engines
from vagentrl.callbacks import (
    AgentCallback,
    EngineAgreement,
    EvaluateAtEnds,
    IterationProgress,
    RunSummary,
)
from vagentrl.checkpoints import AtomicCheckpointIO
from vagentrl.data import RolloutDataModule
from vagentrl.doctor import examine, machine
from vagentrl.errors import ConfigError
from vagentrl.memory import Shards, memory_plan, table
from vagentrl.modules.agent import AgentModule
from vagentrl.parser import Parser
from vagentrl.warmstart import warmstart

# What libraries say on every run and nobody can act upon.
_IDLE_WARNINGS = (
    r"LightningCLI's args parameter",  # they are the same ones: the dispatcher read them first
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's own use
    r"Found \d+ module\(s\) in eval mode",  # on purpose, see `load_policy`
    r"The dirpath has changed from",  # a resumed run has a folder of its own
    r"Since DeepSpeed handles gradient clipping internally",  # as `AgentModule` knows
    r"It is recommended to use `self.log\(",  # all ranks log the same, but for the time it took
    r"You have overridden `transfer_batch_to_device` in `LightningModule`",  # on purpose
)
_IDLE_MESSAGES = ("litlogger", "litmodels", "`Trainer.fit` stopped: `max_epochs=")


class VagentCLI(LightningCLI):
    """``vagentrl fit|validate|test``: one module, one datamodule, everything else pluggable."""

    def __init__(self, args: Sequence[str], run: bool = True) -> None:
        _load_plugins()
        _silence_noise()
        super().__init__(
            AgentModule,
            RolloutDataModule,
            args=list(args),
            run=run,
            seed_everything_default=1,
            auto_configure_optimizers=False,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={
                "default_root_dir": "runs",
                "logger": {
                    "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
                    "init_args": {"save_dir": "runs", "default_hp_metric": False},
                },
                "reload_dataloaders_every_n_epochs": 1,
                "num_sanity_val_steps": 0,
                "use_distributed_sampler": False,
                "log_every_n_steps": 1,
                "enable_model_summary": False,
            },
            parser_class=Parser,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--threads",
            type=int | None,
            default=None,
            help="CPU threads of torch; one is faster than two where other programs run",
        )
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand] if self.subcommand else self.config
        if config.threads is not None:
            torch.set_num_threads(config.threads)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds what every run wants, unless the configuration brings its own."""
        given = self._get(self.config_init, "trainer")
        callbacks = _with_default_callbacks(
            _as_list(given["callbacks"]), given["enable_progress_bar"] is not False
        )
        plugins = _with_default_plugins(_as_list(given["plugins"]))
        try:
            return super().instantiate_trainer(callbacks=callbacks, plugins=plugins, **kwargs)
        except (MisconfigurationException, ValueError) as error:
            raise ConfigError(f"Lightning's trainer refuses its settings: {error}") from error

    def _parse_ckpt_path(self) -> None:
        """Lightning would let a checkpoint's settings overrule the YAML and the command line."""
        command = self.config.get("subcommand")
        path = self.config[command].get("ckpt_path") if command else None
        if path is None or path in ("best", "last", "hpc") or ":" in path or Path(path).exists():
            return
        folder = Path(path).parent
        names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
        raise ConfigError(
            f"--ckpt_path: there is no checkpoint {path}; {folder} holds "
            f"{', '.join(names) or 'nothing'}"
        )


class _CheckCLI(VagentCLI):
    """Parses and instantiates a fit configuration on any machine."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--model_config",
            type=str | None,
            default=None,
            help="folder with the policy's config.json, where its weights are not at hand",
        )

    def before_instantiate_classes(self) -> None:
        super().before_instantiate_classes()
        trainer = self.config.trainer
        wanted = ("accelerator", "devices", "num_nodes", "strategy", "precision")
        print("trainer:", *(f"{name} {trainer[name]}," for name in wanted), "checked on one CPU")
        self.shards = Shards.of(trainer.strategy, trainer.devices, trainer.num_nodes)
        for name, value in zip(wanted, ("cpu", 1, 1, "auto", None), strict=True):
            trainer[name] = value


def run_trainer(args: Sequence[str]) -> None:
    """``vagentrl fit|validate|test``."""
    VagentCLI(args)


def run_check(args: Sequence[str]) -> None:
    """``vagentrl check``: build everything but the weights, and print the memory it will take."""
    cli = _CheckCLI(args, run=False)
    agent: AgentModule = cli.model  # pyright: ignore
    agent.policy_name = cli.config.model_config or agent.policy_name
    for callback in cli.trainer.callbacks:  # pyright: ignore
        if isinstance(callback, AgentCallback) and not isinstance(callback, ProgressBar):
            callback.setup(cli.trainer, agent, "fit")
    agent.trainer = cli.trainer
    agent.setup("fit")
    for name, factory in cli.datamodule.environments.items():  # pyright: ignore
        environment = factory()
        words = len(environment.system_prompt().split())
        print(f"environment {name}: {type(environment).__name__}, explained in {words} words")
        environment.close()
    agent.build(banned_ids=frozenset(), meta=True)
    print(table(list(memory_plan(agent, cli.datamodule, cli.shards))))  # pyright: ignore
    print("the configuration parses, and everything but the weights can be built")


def doctor(model: str | None = None) -> None:
    """Say what works on this machine, and exit with 1 if something that is installed does not.

    Args:
        model: Also look at this model, named as for ``model.policy``: does its chat template keep
            to the turns, does it see images, do the engines agree with the trainer?
    """
    findings = machine()
    if model is not None:
        findings = chain(findings, examine(model))
    broken = 0
    for finding in findings:
        print(finding, flush=True)
        broken += finding.good is False
    if broken:
        raise SystemExit(1)


def run_doctor(args: Sequence[str]) -> None:
    """``vagentrl doctor``."""
    _load_plugins()
    _silence_noise()
    auto_cli(doctor, args=list(args), as_positional=False, parser_class=Parser)


def run_warmstart(args: Sequence[str]) -> None:
    """``vagentrl warmstart``."""
    _load_plugins()
    _silence_noise()
    auto_cli(warmstart, args=list(args), as_positional=False, parser_class=Parser)


def _as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]


def _with_default_callbacks(given: list[Callback], progress_bar: bool) -> list[Callback]:
    """What is given, and what every run wants; a kind that is given is not added again."""
    wanted: list[Callback] = [EvaluateAtEnds(), EngineAgreement(), RunSummary()]
    if progress_bar and not any(isinstance(callback, ProgressBar) for callback in given):
        wanted.insert(0, IterationProgress())
    kinds = {type(callback) for callback in given}
    return given + [callback for callback in wanted if type(callback) not in kinds]


def _with_default_plugins(given: list[Any]) -> list[Any]:
    saves = any(isinstance(plugin, CheckpointIO) for plugin in given)
    return given if saves else [*given, AtomicCheckpointIO()]


def _load_plugins() -> None:
    """Import what is there to choose from, so that its classes can be named briefly."""
    for name in engines.__all__:
        getattr(engines, name)
    for plugin in entry_points(group="vagentrl.plugins"):
        plugin.load()


def _silence_noise() -> None:
    for message in _IDLE_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_is_news)
    disable_progress_bar()


def _is_news(record: logging.LogRecord) -> bool:
    return not any(message in record.getMessage() for message in _IDLE_MESSAGES)
