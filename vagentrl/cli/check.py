"""``vagentrl check``: a dry run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jsonargparse.typing import PositiveFloat
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser

from vagentrl.cli.checkpoints import find_checkpoint
from vagentrl.cli.memory import GIB, Shards, memory_plan, table
from vagentrl.cli.trainer import VagentCLI
from vagentrl.cli.verdict import Setup, verdict
from vagentrl.datamodule import RolloutDataModule
from vagentrl.errors import RolloutError
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.trainer_checks import MIXED, check_trainer


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
        parser.add_argument(
            "--gpu_memory",
            type=PositiveFloat | None,  # pyright: ignore[reportOperatorIssue]
            default=None,
            help="GiB of each GPU, to say whether the run fits; those of this machine's, if any",
        )

    def before_instantiate_classes(self) -> None:
        super().before_instantiate_classes()
        trainer = self.config.trainer
        wanted = ("accelerator", "devices", "num_nodes", "strategy", "precision")
        print("trainer:", *(f"{name} {trainer[name]}," for name in wanted), "checked on one CPU")
        self.shards = Shards.of(trainer.strategy, trainer.devices, trainer.num_nodes)
        self.precision = trainer.precision
        for name, value in zip(wanted, ("cpu", 1, 1, "auto", None), strict=True):
            trainer[name] = value


def run_check(args: Sequence[str]) -> None:
    """``vagentrl check``: build everything but the weights, and print the memory it will take."""
    cli = _CheckCLI(args, run=False)
    if cli.config.ckpt_path is not None:
        print("checkpoint:", find_checkpoint(cli.config.ckpt_path, cli.trainer))
    agent: AgentModule = cli.model  # pyright: ignore
    agent.policy_name = cli.config.model_config or agent.policy_name
    agent.trainer = cli.trainer
    cli.trainer.strategy.connect(agent)
    for callback in agent.hooks.callbacks:
        if not isinstance(callback, ProgressBar):
            callback.setup(cli.trainer, agent, "fit")
    check_trainer(cli.trainer, "fit")
    silent = 0
    for name, factory in cli.datamodule.environments.items():  # pyright: ignore
        environment = factory()
        words = len(environment.system_prompt().split())
        print(f"environment {name}: {type(environment).__name__}, explained in {words} words")
        silent += _answers(f"environment {name}", environment.probe)
        environment.close()
    for callback in agent.hooks.callbacks:
        silent += _answers(type(callback).__name__, callback.probe)
    agent.build(banned_ids=frozenset(), meta=True)
    data: RolloutDataModule = cli.datamodule  # pyright: ignore
    data.engine.dtype = MIXED.get(str(cli.precision))
    device_bytes = _device_bytes(cli.config.gpu_memory)
    print(table(list(memory_plan(agent, data, cli.shards, device_bytes))))
    if device_bytes is None:
        print("to learn whether that fits, give --gpu_memory GIB")
    else:
        print(verdict(Setup(agent, data, cli.shards, device_bytes)))
    print("the configuration parses, and everything but the weights can be built")
    if silent:
        print(
            f"but {silent} of its services did not answer from here; a run would end at its start"
        )


def _device_bytes(gpu_memory: float | None) -> float | None:
    """Memory of each GPU: as given, or of this machine's; None if there is none."""
    if gpu_memory is not None:
        return gpu_memory * GIB
    return torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else None


def _answers(owner: str, probe: Callable[[], None]) -> int:
    """Print whether the services of a part answer; return 1 if one does not."""
    try:
        probe()
    except RolloutError as error:
        print(f"{owner}: FAILS: {error}")
        return 1
    return 0
