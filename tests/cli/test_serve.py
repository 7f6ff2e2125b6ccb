"""``vagentrl serve``."""

import os
from typing import Any

import pytest

from tests import runs
from vagentrl.cli.main import main
from vagentrl.engines.vllm.settings import BANNED_IDS
from vagentrl.models.load import checkpoint_path

CONFIG = ("--config", "sokoban_text", "--data.context_length=300")


class Became(Exception):
    """The process has become the command in the arguments."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, run_dir: Any) -> Any:
    def become(file: str, command: list[str], environment: dict[str, str]) -> None:
        raise Became(command, environment)

    monkeypatch.setattr("vagentrl.cli.serve.check_installed", lambda: None)
    monkeypatch.setattr(os, "execvpe", become)

    def run(*settings: str) -> tuple[list[str], dict[str, str]]:
        with pytest.raises(Became) as became:
            main(["serve", *settings])
        return became.value.args[0], became.value.args[1]

    return run


def test_a_server_is_started_with_what_the_configuration_says(serve):
    fleet = ("--data.engine=VLLMFleet", "--data.engine.urls=[http://elsewhere:1]")
    several = ("--trainer.devices=8", "--trainer.accelerator=gpu", "--trainer.precision=bf16-mixed")
    options = ("--data.engine.options={max_num_seqs: 7}", "--data.engine.transfer=nccl")
    command, environment = serve(
        *CONFIG, *fleet, *several, *options, "--port=8001", "--host=10.0.0.5"
    )
    text = " ".join(command)
    for flag in (
        f"--model {checkpoint_path('tiny-sokoban-text')}", "--dtype bfloat16", "--port 8001",
        "--max-model-len 300", "--max-num-seqs 7", "--host 10.0.0.5", "--load-format dummy",
        '--weight-transfer-config {"backend": "nccl"}', BANNED_IDS,
    ):  # fmt: skip
        assert flag in text
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


def test_a_server_listens_on_this_machine_alone_unless_it_is_told_otherwise(serve):
    command, _ = serve(*CONFIG, "--data.engine=VLLMServerEngine")
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--weight-transfer-config" not in command


def test_a_configuration_whose_engine_uses_no_server_is_refused(monkeypatch, run_dir: Any):
    monkeypatch.setattr("vagentrl.cli.serve.check_installed", lambda: None)
    with pytest.raises(SystemExit, match="TransformersEngine, which uses no server"):
        main(["serve", *runs.arguments()])
