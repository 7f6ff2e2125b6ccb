"""``vagentrl fit``, ``validate`` and ``test``: Lightning's command line around our two classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from vagentrl.cli.parser import Parser
from vagentrl.cli.startup import load_plugins, silence_noise
from vagentrl.datamodule import RolloutDataModule
from vagentrl.errors import ConfigError
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.trainer_checks import check_asked
from vagentrl.trainer import (
    TRAINER_DEFAULTS,
    refused_by_lightning,
    with_default_callbacks,
    with_default_plugins,
)


class VagentCLI(LightningCLI):
    """``vagentrl fit|validate|test``: one module, one datamodule, everything else pluggable."""

    def __init__(self, args: Sequence[str], run: bool = True) -> None:
        load_plugins()
        silence_noise()
        super().__init__(
            AgentModule,
            RolloutDataModule,
            args=list(args),
            run=run,
            seed_everything_default=1,
            auto_configure_optimizers=False,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={
                **TRAINER_DEFAULTS,
                "logger": {
                    "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
                    "init_args": {"save_dir": "runs", "default_hp_metric": False},
                },
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
        check_asked(given)
        callbacks = with_default_callbacks(
            given["callbacks"], progress_bar=given["enable_progress_bar"] is not False
        )
        plugins = with_default_plugins(given["plugins"])
        try:
            return super().instantiate_trainer(callbacks=callbacks, plugins=plugins, **kwargs)
        except (MisconfigurationException, ValueError) as error:
            raise refused_by_lightning(error) from error

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


def run_trainer(args: Sequence[str]) -> None:
    """``vagentrl fit|validate|test``."""
    VagentCLI(args)
