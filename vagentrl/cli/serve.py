"""``vagentrl serve``: a vLLM server that a run's engine can use."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Sequence

from jsonargparse.typing import PositiveInt
from lightning.pytorch.cli import LightningArgumentParser

from vagentrl.cli.trainer import VagentCLI
from vagentrl.datamodule import RolloutDataModule
from vagentrl.engines import VLLMFleet, VLLMServerEngine
from vagentrl.engines.vllm.process import server_command
from vagentrl.engines.vllm.settings import check_installed, engine_settings
from vagentrl.errors import ConfigError
from vagentrl.models.load import checkpoint_path, context_length, load_config
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.trainer_checks import MIXED
from vagentrl.rollout.renderer import Renderer

log = logging.getLogger(__name__)


class ServeCLI(VagentCLI):
    """Parses and instantiates a fit configuration without its devices."""

    without_run = "serve"

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument("--port", type=PositiveInt, default=8000, help="port to listen on")
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            help="address to listen on; whoever reaches it can replace the weights, so name one "
            "of a private network",
        )

    def before_instantiate_classes(self) -> None:
        super().before_instantiate_classes()
        trainer = self.config.trainer
        self.precision = trainer.precision
        alone = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto"}
        for name, value in {**alone, "precision": None}.items():
            trainer[name] = value


def run_serve(args: Sequence[str]) -> None:
    """``vagentrl serve``: become the vLLM server that a configuration's engine needs."""
    check_installed()
    cli = ServeCLI(args, run=False)
    command, environment = command_of(cli, cli.config.port, cli.config.host)
    log.info("%s", shlex.join(command))
    os.execvpe(command[0], command, {**os.environ, **environment})


def command_of(cli: ServeCLI, port: int, host: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables of a configuration's server.

    Raises:
        ConfigError: When the configuration's engine uses no server.
    """
    agent: AgentModule = cli.model  # pyright: ignore
    data: RolloutDataModule = cli.datamodule  # pyright: ignore
    engine = data.engine
    if not isinstance(engine, VLLMFleet | VLLMServerEngine):
        raise ConfigError(
            f"data.engine is {type(engine).__name__}, which uses no server; set it to VLLMFleet"
        )
    agent.build(banned_ids=frozenset(), meta=True)
    policy = agent.actor.policy
    can_read = context_length(load_config(agent.policy_name))
    renderer = Renderer.from_pretrained(checkpoint_path(agent.policy_name))
    settings = engine_settings(
        policy,
        renderer.vocabulary(min(data.wanted_context or can_read, can_read)),
        engine.options,
        engine.kv_cache_gb,
        MIXED.get(str(cli.precision)),
    )
    if isinstance(engine, VLLMFleet):
        settings |= engine.server_settings
    return server_command(settings, port, host)
