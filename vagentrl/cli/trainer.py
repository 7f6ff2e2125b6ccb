"""``vagentrl fit``, ``validate`` and ``test``: Lightning's command line around our two classes."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Sequence
from inspect import isabstract
from pathlib import Path
from pydoc import locate
from typing import Any

import torch
from jsonargparse import ActionConfigFile, Namespace  # pyright: ignore[reportPrivateImportUsage]
from jsonargparse.typing import PositiveInt, restricted_number_type
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import (
    ArgsType,
    LightningArgumentParser,
    LightningCLI,
    SaveConfigCallback,
)

from vagentrl import __version__
from vagentrl.callbacks import CheckMonitors
from vagentrl.cli.checkpoints import SameOnAllRanks, find_checkpoint
from vagentrl.cli.interrupts import was_interrupted
from vagentrl.cli.parser import CONFIG_HELP, Parser
from vagentrl.cli.plugins import load_plugins
from vagentrl.datamodule import RolloutDataModule
from vagentrl.errors import ConfigError
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.run_folders import places_of_run, run_folder
from vagentrl.modules.saved_checkpoints import newest_checkpoint
from vagentrl.modules.trainer_checks import check_asked
from vagentrl.noise import be_quiet, silence_noise
from vagentrl.trainer import (
    TRAINER_DEFAULTS,
    refused_by_lightning,
    resume,
    with_default_callbacks,
    with_default_plugins,
)

_Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)])

DESCRIPTIONS = {
    "fit": "Train a policy; a resumed run goes on exactly where its checkpoint was saved.",
    "validate": "Evaluate a policy on held-out episodes: model.policy, or a checkpoint of it.",
    "test": "Evaluate a policy on the episodes that are kept for the end.",
    "check": "Dry run: build everything but the weights, and say how large it is.",
    "serve": "Start the vLLM server that data.engine needs, a VLLMFleet or VLLMServerEngine.",
}


class _Parser(Parser, LightningArgumentParser):
    """Lightning's parser, with our own words for what is wrong."""


class VagentCLI(LightningCLI):
    """``vagentrl fit|validate|test``: one module, one datamodule, everything else pluggable.

    Args:
        args: Arguments of the command line, beginning with the command if it is to be run.
        run: Run the command; otherwise only instantiate the classes.

    Attributes:
        without_run: The command whose help is shown if none is run.
    """

    without_run = "check"

    def __init__(self, args: Sequence[str], run: bool = True) -> None:
        load_plugins()
        silence_noise()
        command, settings = (args[0], args[1:]) if run else (self.without_run, args)
        super().__init__(
            AgentModule,
            RolloutDataModule,
            args=list(settings),
            run=False,  # Lightning would build a parser for every command; here all are alike
            parser_kwargs={
                "prog": f"vagentrl {command}",
                "usage": f"vagentrl {command} --config CONFIG [--KEY VALUE ...]",
                "description": DESCRIPTIONS[command],
                "dump_header": [f"vagentrl=={__version__}"],
            },
            seed_everything_default=1,
            auto_configure_optimizers=False,
            save_config_callback=_SaveConfig,
            save_config_kwargs={"save_to_log_dir": False},
            trainer_defaults={
                **TRAINER_DEFAULTS,
                "logger": {
                    "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
                    "init_args": {"save_dir": "runs", "default_hp_metric": False},
                },
            },
            load_from_checkpoint_support=False,
        )
        if run:
            self._run(command, settings)

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        parser = _Parser(**kwargs)
        parser.add_argument("-c", "--config", action=ActionConfigFile, help=CONFIG_HELP)
        return parser

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(AgentModule, "model")
        parser.add_lightning_class_args(RolloutDataModule, "data")
        parser.add_lightning_class_args(Trainer, "trainer")  # last: its help fills pages
        defaults = {f"trainer.{name}": value for name, value in self.trainer_defaults.items()}
        parser.set_defaults(defaults)

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--seed_everything",
            type=_Seed,
            default=self.seed_everything_default,
            help="decides everything that is drawn at random",
        )
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="checkpoint to resume from (fit) or to evaluate: a path, `last` for the newest of "
            "this configuration's runs, or `best` for that run's best by ModelCheckpoint's monitor",
        )
        parser.add_argument(
            "--weights_only",
            type=bool | None,
            default=None,
            help="false loads checkpoints with any object in them, which can run any code: only "
            "for those that you trust",
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--threads",
            type=PositiveInt | None,  # pyright: ignore[reportOperatorIssue]
            default=None,
            help="CPU threads of torch; one is faster than two where other programs run",
        )
        parser.add_argument(
            "--quiet",
            action="store_true",
            help="write only warnings and errors to the terminal; log.jsonl and the loggers get "
            "all that they would",
        )
        parser.add_argument(
            "--resume",
            action="store_true",
            help="fit: go on with the newest run of this configuration, in its folder; without one "
            "start from the beginning, so that a job can be started again with the same command",
        )
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        super().parse_arguments(parser, args)
        if self.config.quiet:  # the seed is told before any class is made
            be_quiet()

    def before_instantiate_classes(self) -> None:
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        # The parser refuses abstract classes only where a setting is an instance of the class.
        env = self.config.data.env
        kind: Any = locate(env.class_path) if isinstance(env, Namespace) else None
        if isabstract(kind):
            lacks = ", ".join(sorted(kind.__abstractmethods__))
            raise ConfigError(
                f"data.env is {env.class_path}, which is abstract: it lacks {lacks}; name a class "
                "that is derived from it"
            )

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ConfigError:
            raise
        except (MisconfigurationException, ValueError) as error:
            cause: BaseException | None = error  # the parser wraps it in errors of its own
            while cause is not None and not isinstance(cause, MisconfigurationException):
                cause = cause.__cause__
            if cause is None:
                raise
            raise ConfigError(f"Lightning refuses a setting: {cause}") from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds what every run wants, unless the configuration brings its own."""
        given = self._get(self.config_init, "trainer")
        check_asked(given)
        callbacks = with_default_callbacks(
            given["callbacks"], progress_bar=given["enable_progress_bar"] is not False
        )
        plugins = with_default_plugins(given["plugins"])
        for callback in callbacks:
            if self.config.quiet and isinstance(callback, ProgressBar):
                callback.disable()
        try:
            return super().instantiate_trainer(callbacks=callbacks, plugins=plugins, **kwargs)
        except (MisconfigurationException, ValueError) as error:
            raise refused_by_lightning(error) from error

    def _run(self, command: str, settings: Sequence[str]) -> None:
        path = self._checkpoint(command)
        self.trainer.callbacks[:0] = [EndAtOnce(), SameOnAllRanks(), CheckMonitors()]  # pyright: ignore
        started = time.time()
        try:
            getattr(self.trainer, command)(
                self.model,
                datamodule=self.datamodule,
                ckpt_path=path,
                weights_only=self.config.weights_only,
            )
        except MisconfigurationException as error:
            raise ConfigError(f"Lightning refuses a setting: {error}") from error
        except (KeyboardInterrupt, SystemExit) as error:
            if not was_interrupted(error) or command != "fit":
                raise
            saved = newest_checkpoint(places_of_run(self.trainer), since=started) or path
            raise KeyboardInterrupt(self._how_to_resume(settings, saved)) from None

    def _checkpoint(self, command: str) -> str | None:
        """The checkpoint to begin with."""
        wanted = self.config.ckpt_path
        if not self.config.resume:
            return None if wanted is None else find_checkpoint(wanted, self.trainer)
        if wanted is not None:
            raise ConfigError(
                f"--resume finds the newest checkpoint itself, but --ckpt_path is {wanted}; give "
                "one of the two"
            )
        if command != "fit":
            raise ConfigError(f"--resume is for `fit`; for `{command}` give --ckpt_path last")
        return resume(self.trainer)

    def _how_to_resume(self, settings: Sequence[str], checkpoint: Path | str | None) -> str:
        done = f"{self.model.iteration} iterations were complete"
        if checkpoint is None:
            return (
                f"{done}, and no checkpoint was saved yet: the next run starts from the beginning"
            )
        given, skipped = [], False
        for setting in settings:
            if not skipped and not setting.startswith("--ckpt_path"):
                given.append(setting)
            skipped = setting == "--ckpt_path"  # its value follows
        if not self.config.resume:
            given += ["--ckpt_path", str(checkpoint)]
        again = shlex.join(["vagentrl", "fit", *given])
        return f"{done}. Resume with: {again}"


class _SaveConfig(SaveConfigCallback):
    """Saves the configuration in the run's folder, with any logger."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._folder = run_folder(trainer)  # all ranks ask, and only rank 0 saves
        super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = str(self._folder / self.config_filename)
        self.parser.save(self.config, path, skip_none=False, overwrite=True, multifile=False)


class EndAtOnce(Callback):
    """SIGTERM ends the run where it is, and a second Ctrl-C ends the process.

    With Lightning's own handlers, SIGTERM would wait for the end of a batch, however long its
    episodes take, and a second Ctrl-C would be ignored.
    """

    def __init__(self) -> None:
        self._terminate = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _set_handler(signal.SIGTERM, self._terminate)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _set_handler(signal.SIGTERM, self._terminate)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _set_handler(signal.SIGTERM, self._terminate)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, KeyboardInterrupt):
            _set_handler(signal.SIGINT, signal.SIG_DFL)


def _set_handler(number: signal.Signals, handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # others may not set any
        signal.signal(number, handler)


def run_trainer(args: Sequence[str]) -> None:
    """``vagentrl fit|validate|test``."""
    VagentCLI(args)
