"""What the commands do; imported by `vagentrl.cli` when one of them is chosen."""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, NoReturn

import torch
from jsonargparse import CLI
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from vagentrl.callbacks import EvaluateAtStart, IterationProgress, RunSummary
from vagentrl.data import RolloutDataModule
from vagentrl.modules.agent import AgentModule
from vagentrl.warmstart import warmstart


class _Parser(LightningArgumentParser):
    """Errors without sixty lines of usage, and with a guess at what was meant."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        print(f"vagentrl: {message}{self._guess(message)}", file=sys.stderr)
        raise SystemExit(2)

    def _guess(self, message: str) -> str:
        unknown = re.search(r"(?:Unrecognized arguments: --|Key ')([\w.]+)", message)
        if unknown is None:
            return ""
        known = [action.dest for action in self._actions]
        close = difflib.get_close_matches(unknown[1], known, n=1)
        return f"\nDid you mean {close[0]!r}?" if close else ""


class VagentCLI(LightningCLI):
    """``vagentrl fit|validate|test``: one module, one datamodule, everything else pluggable."""

    def __init__(self, args: Sequence[str], run: bool = True) -> None:
        _load_plugins()
        # they are the same ones: the dispatcher read them first
        warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
        super().__init__(
            AgentModule,
            RolloutDataModule,
            args=list(args),
            run=run,
            seed_everything_default=1,
            auto_configure_optimizers=False,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={
                "callbacks": [IterationProgress(), EvaluateAtStart(), RunSummary()],
                "reload_dataloaders_every_n_epochs": 1,
                "num_sanity_val_steps": 0,
                "use_distributed_sampler": False,
                "log_every_n_steps": 1,
                "enable_model_summary": False,
            },
            parser_class=_Parser,
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

    def _parse_ckpt_path(self) -> None:
        """Lightning would let a checkpoint's settings overrule the YAML and the command line."""


class _CheckCLI(VagentCLI):
    """Parses and instantiates a fit configuration on any machine."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--model_config",
            type=str | None,
            default=None,
            help="folder with the config.json of the policy, where the policy itself is not at hand",
        )

    def before_instantiate_classes(self) -> None:
        super().before_instantiate_classes()
        trainer = self.config.trainer
        wanted = f"{trainer.accelerator}, {trainer.devices} devices, {trainer.strategy}"
        print(f"trainer: {wanted}; checked on one CPU")
        trainer.update(accelerator="cpu", devices=1, num_nodes=1, strategy="auto", precision=None)


def run_trainer(args: Sequence[str]) -> None:
    """``vagentrl fit|validate|test``."""
    VagentCLI(args)


def run_check(args: Sequence[str]) -> None:
    """``vagentrl check``: build everything but the weights, and print how large it is."""
    cli = _CheckCLI(args, run=False)
    agent: AgentModule = cli.model  # pyright: ignore
    agent.policy_name = cli.config.model_config or agent.policy_name
    for callback in cli.trainer.callbacks:  # pyright: ignore
        callback.setup(cli.trainer, agent, "fit")
    agent.build(banned_ids=frozenset(), meta=True)
    gib = 2**30
    print(f"{'model':<12}{'parameters':>16}{'weights GiB':>14}{'with Adam GiB':>16}")
    for name, module in agent.named_children():
        count = sum(p.numel() for p in module.parameters())
        bytes_each = next(module.parameters()).element_size()
        trained = any(p.requires_grad for p in module.parameters())
        adam = count * (2 * bytes_each + 8) if trained else count * bytes_each
        print(f"{name:<12}{count:>16,}{count * bytes_each / gib:>14.2f}{adam / gib:>16.2f}")
    print("the configuration parses, and everything but the weights can be built")


def run_warmstart(args: Sequence[str]) -> None:
    """``vagentrl warmstart``."""
    _load_plugins()
    CLI(warmstart, args=list(args), as_positional=False)


def _load_plugins() -> None:
    """Import what installed packages offer, so that their classes can be named briefly."""
    for plugin in entry_points(group="vagentrl.plugins"):
        plugin.load()
