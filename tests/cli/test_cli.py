"""What the command line says, and what it refuses."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.plugins.io import TorchCheckpointIO

from tests import runs
from vagentrl import __version__
from vagentrl.callbacks import EvaluateAtEnds, IterationProgress, RunSummary
from vagentrl.cli.main import COMMANDS, main
from vagentrl.cli.parser import explain
from vagentrl.cli.trainer import VagentCLI
from vagentrl.modules.checkpoint_io import AtomicCheckpointIO


def test_help_is_instant_and_needs_no_torch():
    program = (
        "import sys; from vagentrl.cli.main import main; main(['--help']); "
        "sys.exit(bool({'torch', 'transformers', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    main(["--version"])
    assert capsys.readouterr().out == f"{__version__}\n"


def test_an_unknown_command_is_refused_with_a_guess():
    with pytest.raises(SystemExit, match=r"no command 'fitt' \(did you mean fit\?\)"):
        main(["fitt"])


@pytest.mark.parametrize("command", ["fit", "validate", "test", "check", "serve"])
def test_the_help_of_a_command_is_its_own(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: vagentrl {command} --config CONFIG [--KEY VALUE ...]\n")
    assert "Lightning Trainer command line tool" not in printed
    assert printed.index("--model.policy") < printed.index("--data.env")
    assert printed.index("--data.env") < printed.index("--trainer.max_epochs")  # pages of them


def test_a_checkpoint_is_exported_by_the_arguments_of_a_function(monkeypatch: pytest.MonkeyPatch):
    exported: list[tuple[str, str, bool]] = []

    def export_policy(checkpoint: str, folder: str, half: bool = False) -> None:
        """Write a policy.

        Args:
            checkpoint: Where from.
            folder: Where to.
            half: In half precision.
        """
        exported.append((checkpoint, folder, half))

    policy = ModuleType("vagentrl.policy")
    policy.export_policy = export_policy  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "vagentrl.policy", policy)
    main(["export", "last.ckpt", "model"])
    main(["export", "last.ckpt", "model", "--half=true"])
    assert exported == [("last.ckpt", "model", False), ("last.ckpt", "model", True)]


def test_a_complaint_that_is_not_known_stays_as_it_is():
    assert explain("the moon is full") == "the moon is full"


def test_all_settings_are_printed_as_a_configuration(capsys: pytest.CaptureFixture[str]):
    arguments = runs.arguments("--data.groups=7", "--print_config")
    capsys.readouterr()  # what libraries say when the model is made
    with pytest.raises(SystemExit) as ended:
        main(["fit", *arguments])
    assert ended.value.code in (0, None)
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["data"]["groups"] == 7
    assert printed["data"]["env"]["init_args"] == {"images": False, "turn_limit": 2}
    assert printed["trainer"]["default_root_dir"] == "runs"


def test_every_run_is_evaluated_summarised_shown_and_saved_whole():
    run = runs.prepare("--trainer.callbacks=[]")
    kinds = {type(callback) for callback in runs.callbacks(run)}
    assert kinds >= {EvaluateAtEnds, RunSummary, IterationProgress}
    assert isinstance(run.trainer.strategy.checkpoint_io, AtomicCheckpointIO)


def test_what_a_configuration_brings_takes_the_place_of_the_default():
    run = runs.prepare(
        "--trainer.callbacks=lightning.pytorch.callbacks.TQDMProgressBar",
        "--trainer.callbacks+=vagentrl.callbacks.RunSummary",
        "--trainer.plugins+=lightning.pytorch.plugins.io.TorchCheckpointIO",
    )
    bars = [callback for callback in runs.callbacks(run) if isinstance(callback, ProgressBar)]
    assert [type(bar) for bar in bars] == [TQDMProgressBar]
    assert [type(callback) for callback in runs.callbacks(run)].count(RunSummary) == 1
    assert type(run.trainer.strategy.checkpoint_io) is TorchCheckpointIO


def test_a_progress_bar_can_be_turned_off():
    run = runs.prepare("--trainer.enable_progress_bar=false")
    assert not any(isinstance(callback, ProgressBar) for callback in runs.callbacks(run))


def test_a_function_that_makes_an_environment_may_stand_for_its_class(run_dir: Path):
    env = "{class_path: tests.toy.Countdown, init_args: {turn_limit: 2}}"
    text = runs.TOY_RUN.read_text().replace(env, "tests.toy.make_countdown")
    Path("function.yaml").write_text(text)
    config = ("--config", "function.yaml", "--model.policy", runs.checkpoint())
    run = VagentCLI(["validate", *config, "--data.val_episodes=1"])
    assert run.trainer.callback_metrics["val/turns"] <= 2


def test_a_dry_run_says_which_checkpoint_is_meant(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
):
    runs.fit("--trainer.max_epochs=1", "--trainer.limit_val_batches=0")
    main(["check", *runs.arguments("--ckpt_path=last")])
    assert "checkpoint: runs/toy/version_0/checkpoints/last.ckpt\n" in capsys.readouterr().out


def test_the_number_of_threads_is_set(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    runs.prepare("--threads=3")
    assert asked == [3]


def test_what_a_part_in_a_list_refuses_is_said_in_its_own_words(run_dir: Path):
    judge = '{"class_path": "vagentrl_judges.exact_state.ExactState"}'
    part = (
        "--trainer.callbacks=vagentrl.callbacks.WorldModelReward",
        f"--trainer.callbacks.judge={judge}",
        "--trainer.callbacks.observation_coefficient=-1",
    )
    with pytest.raises(SystemExit) as ended:
        main(["check", *runs.arguments(*part)])
    assert str(ended.value).startswith(
        "vagentrl: ConfigError: WorldModelReward.observation_coefficient is -1"
    )
