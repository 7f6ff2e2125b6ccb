"""What the command line says, and what it refuses."""

import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("--trainer.strategy=nonsense", "invalid strategy name: `strategy='nonsense'`"),
        ("--trainer.devices=0", "`Trainer(devices='0')` value is not a valid input"),
    ],
)
def test_what_lightning_refuses_is_told_in_one_line(setting: str, said: str):
    with pytest.raises(SystemExit) as refused:
        main(["fit", "--config", str(runs.TOY_RUN), "--model.policy", "x", setting])
    told = str(refused.value)
    assert told.startswith("vagentrl: ConfigError: Lightning's trainer refuses") and said in told


def test_an_unknown_command_is_refused_with_a_guess():
    with pytest.raises(SystemExit, match=r"no command 'fitt' \(did you mean fit\?\)"):
        main(["fitt"])


REFUSED = {
    "--data.grups=3": "there is no setting data.grups (did you mean data.groups?)",
    "--modle.policy=x": "there is no setting modle.policy (did you mean model?)",
    "--trainer.max_epoch=3": (
        "there is no setting trainer.max_epoch (did you mean trainer.max_epochs?)"
    ),
    "--data.env.init_args.turn_limt=3": (
        "there is no setting data.env.init_args.turn_limt (did you mean turn_limit?)"
    ),
    "--data.groups=many": "data.groups is 'many', but should be int",
    "--data.env.init_args.turn_limit=long": (
        "data.env.init_args.turn_limit is 'long', but should be int"
    ),
    "--data.sampling.max_tokens=3.5": "data.sampling.max_tokens is '3.5', but should be int",
    "--model.critic=both": "model.critic is 'both', but should be 'own' or 'shared'",
    "--trainer.max_epochs=many": "trainer.max_epochs is 'many', but should be one of: int, null",
    "--data.env=vagentrl_envs.sokoban.Sokobann": (
        "data.env: there is no 'Sokobann' in vagentrl_envs.sokoban (did you mean Sokoban?)"
    ),
    "--data.env=vagentrl_envs.sokobann.Sokoban": (
        "data.env: there is no 'sokobann' in vagentrl_envs (did you mean sokoban?)"
    ),
    "--data.env=3": "data.env is '3', but should be the import path of a class",
    "--data.env=vagentrl.formats.Grounding": (
        "data.env is vagentrl.formats.Grounding, but should be a subclass of Environment"
    ),
    "--data.engine=vagentrl.engines.Xyz": "data.engine: there is no 'Xyz' in vagentrl.engines",
    "--trainer.callbacks+=vagentrl.callbacks.RunSumary": (
        "trainer.callbacks: there is no 'RunSumary' in vagentrl.callbacks "
        "(did you mean RunSummary?)"
    ),
    "--data.seed=3": 'Linked "data.seed" must be given via "seed_everything".',
}


@pytest.mark.parametrize("override", REFUSED)
def test_wrong_settings_are_refused_in_one_line_that_names_the_key(
    override: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *runs.arguments(override)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"vagentrl: {REFUSED[override]}\n"


WRONG_LINES = {
    ("  groups: 2", "  grups: 2"): "there is no setting data.grups (did you mean data.groups?)",
    ("model:", "modle:"): "there is no setting modle.advantage.class_path (did you mean model?)",
    ("turn_limit: 2", "turn_limt: 2"): (
        "there is no setting data.env.init_args.turn_limt (did you mean turn_limit?)"
    ),
    ("coefficient: 0.1", "coeficient: 0.1"): (
        "there is no setting trainer.callbacks.init_args.coeficient (did you mean coefficient?)"
    ),
    ("coefficient: 0.1", "coefficient: 0.1, estimator: k4"): (
        "trainer.callbacks.init_args.estimator is 'k4', but should be 'k1' or 'k2' or 'k3' or 'k3+'"
    ),
}


@pytest.mark.parametrize("change", WRONG_LINES, ids=lambda change: change[1].strip())
def test_wrong_lines_of_a_file_are_refused_in_the_same_way(
    change: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "wrong.yaml"
    path.write_text(runs.TOY_RUN.read_text().replace(*change))
    with pytest.raises(SystemExit):
        main(["fit", *runs.arguments("--config", str(path))])
    assert capsys.readouterr().err == f"vagentrl: {WRONG_LINES[change]}\n"


def test_the_warm_start_refuses_unknown_settings_too(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["warmstart", "--outputt=x"])
    assert "there is no setting outputt (did you mean output?)" in capsys.readouterr().err


def test_a_complaint_that_is_not_known_stays_as_it_is():
    assert explain("the moon is full") == "the moon is full"


def test_all_settings_are_printed_as_a_configuration(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *runs.arguments("--data.groups=7", "--print_config")])
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
