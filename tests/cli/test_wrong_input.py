"""Wrong input is refused in one line that names it: nothing is silent, nothing a traceback."""

from pathlib import Path

import pytest

from tests import runs
from vagentrl.callbacks import CheckMonitors
from vagentrl.cli.main import main

CHECKPOINT = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"

SETTINGS = {
    # keys
    "--data.grups=3": "there is no setting data.grups (did you mean data.groups?)",
    "--data.group=3": "there is no setting data.group (did you mean data.groups?)",
    "--modle.policy=x": "there is no setting modle.policy (did you mean model?)",
    "--trainer.max_epoch=3": (
        "there is no setting trainer.max_epoch (did you mean trainer.max_epochs?)"
    ),
    "--data.env.init_args.turn_limt=3": (
        "there is no setting data.env.init_args.turn_limt (did you mean turn_limit?)"
    ),
    "-data.groups=3": "there is no option -data.groups=3; settings start with two dashes",
    "data.groups=3": "data.groups=3 stands alone; settings are given as --key value",
    "mine.yaml": "mine.yaml stands alone; did you mean --config mine.yaml?",
    # values
    "--data.groups=many": "data.groups is 'many', but should be int",
    "--data.env.init_args.turn_limit=long": (
        "data.env.init_args.turn_limit is 'long', but should be int"
    ),
    "--data.sampling.max_tokens=3.5": "data.sampling.max_tokens is '3.5', but should be int",
    "--model.critic=both": "model.critic is 'both', but should be 'own' or 'shared'",
    "--model.value_coef=nan": "model.value_coef is 'nan', but should be float",
    "--model.freeze_vision=maybe": "model.freeze_vision is 'maybe', but should be bool",
    "--trainer.max_epochs=many": "trainer.max_epochs is 'many', but should be one of: int, null",
    "--threads=0": "threads is '0', but should be one of: PositiveInt, null",
    "--seed_everything=-3": "seed_everything is -3, but should be >=0 and <4294967296",
    "--data.val_envs=[tests.toy.Countdown]": (
        "data.val_envs is \"['tests.toy.Countdown']\", but should be one of: "
        "dict[str, Callable[[], Environment]], null"
    ),
    "--data.seed=3": 'Linked "data.seed" must be given via "seed_everything".',
    # classes
    "--data.env=vagentrl_envs.sokoban.Sokobann": (
        "data.env: there is no 'Sokobann' in vagentrl_envs.sokoban (did you mean Sokoban?)"
    ),
    "--data.env=vagentrl_envs.sokobann.Sokoban": (
        "data.env: there is no 'sokobann' in vagentrl_envs (did you mean sokoban?)"
    ),
    "--data.env=nowhere.Maze": (
        "data.env: there is no module nowhere; for a file in this folder set PYTHONPATH=., for a "
        "package install it"
    ),
    "--data.env=3": "data.env is '3', but should be the import path of a class",
    "--data.env=Sokobann": (
        "data.env is 'Sokobann', but should be the import path of a class (did you mean Sokoban?)"
    ),
    "--model.advantage=PPOClip": (
        "model.advantage is PPOClip, which is no class for this setting; see --help"
    ),
    "--data.env=vagentrl.formats.Grounding": (
        "data.env is vagentrl.formats.Grounding, but should be a subclass of Environment"
    ),
    "--data.env=vagentrl_envs.bandit": (
        "data.env is the module vagentrl_envs.bandit; name a class in it: Bandit, BanditRev"
    ),
    "--data.env=tests.toy.TASK": (
        "data.env is tests.toy.TASK, which is neither a class nor a function"
    ),
    "--data.env=tests.toy.renderer": (
        "data.env is tests.toy.renderer, a function that does not say what it returns; name a "
        "class, or write `-> Environment` behind its arguments"
    ),
    "--model.advantage=vagentrl.advantages": (
        "model.advantage is vagentrl.advantages, but should be a subclass of AdvantageEstimator"
    ),
    "--data.engine=vagentrl.engines.vllm": (
        "data.engine is vagentrl.engines.vllm, but should be a subclass of Engine"
    ),
    "--data.engine=vagentrl.engines.base.Engine": (
        "data.engine is vagentrl.engines.base.Engine, which is abstract: it lacks generate, "
        "prepare, update_weights; name a class that is derived from it"
    ),
    "--data.engine=vagentrl.engines.Xyz": "data.engine: there is no 'Xyz' in vagentrl.engines",
    "--trainer.callbacks+=vagentrl.callbacks.RunSumary": (
        "trainer.callbacks: there is no 'RunSumary' in vagentrl.callbacks "
        "(did you mean RunSummary?)"
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting_is_refused_by_name(setting: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *runs.arguments(setting)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"vagentrl: {SETTINGS[setting]}\n"


LINES = {
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
    ("{class_path: tests.toy.Countdown,", "{class_pat: tests.toy.Countdown,"): (
        "data.env is {'class_pat': 'tests.toy.Countdown', 'init_args': {'turn_limit': 2}}, but "
        "should have the key class_path and, for settings of that class, init_args"
    ),
    ("{class_path: tests.toy.Countdown, init_args: {turn_limit: 2}}", "a countdown"): (
        "data.env is 'a countdown', but should be the import path of a class"
    ),
    ("{class_path: tests.toy.Countdown, init_args: {turn_limit: 2}}", "7"): (
        "data.env is 7, but should be the import path of a class, or have a class_path"
    ),
}


@pytest.mark.parametrize("change", LINES, ids=lambda change: change[1].strip())
def test_a_wrong_line_of_a_file_is_refused_in_the_same_way(
    change: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "wrong.yaml"
    path.write_text(runs.TOY_RUN.read_text().replace(*change))
    with pytest.raises(SystemExit):
        main(["fit", "--config", str(path), "--model.policy=x"])
    assert capsys.readouterr().err == f"vagentrl: {LINES[change]}\n"


FILES = {
    "": "is empty; copy a recipe (vagentrl recipes NAME > wrong.yaml)",
    "- model\n- data\n": "holds no settings: it should start with a key such as `model:`",
    "hello\n": "holds no settings",
    "model: {policy: x\ndata: y\n": "line 2: expected ',' or '}', but got ':'; it is not YAML",
    "model:\n\tpolicy: x\n": "line 2: found character '\\t' that cannot start any token",
    "model: {policy: x}\ndata:\n  groups: 1\nmodel: {critic: own}\n": (
        "line 4: 'model' is given twice, first in line 1"
    ),
    "data:\n  groups: 1\n  passes: 1\n  groups: 2\n": (
        "line 4: 'groups' is given twice, first in line 2"
    ),
    "data:\n  env: {class_path: [a.B]}\n": (
        "line 2: class_path should be the import path of one class"
    ),
    "model: \udcff\n": "is not a text file (invalid start byte)",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_with_mistakes_is_refused_with_the_line(text: str, run_dir: Path):
    Path("wrong.yaml").write_text(text, errors="surrogateescape")
    said = refusal("fit", "--config=wrong.yaml")
    assert said.startswith("vagentrl: ConfigError: --config: wrong.yaml")
    assert FILES[text] in said


def refusal(*arguments: str) -> str:
    """What a command ends with."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return str(ended.value.code)


COMMANDS = {
    ("fitt",): "vagentrl: there is no command 'fitt' (did you mean fit?); see vagentrl --help",
    (
        "fit",
        "--config",
        "nope.yaml",
    ): "there is no file nope.yaml, and there is no recipe nope.yaml",
    ("fit", "--config", "sokoban_vml"): "did you mean sokoban_vlm",
    ("check", "-c", "tests"): "tests is a folder; name a file in it: none",
    ("recipes", "nothing_like_it"): "there is no recipe nothing_like_it",
    ("recipes", "--al"): "takes one name at most, not --al",
}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_wrong_command_or_name_is_refused(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(runs.TOY_RUN.parents[2])
    assert COMMANDS[arguments] in refusal(*arguments)


OTHER_COMMANDS = {
    ("fit",): "the following arguments are required: model.policy, model.advantage, data.env",
    ("warmstart",): "the following arguments are required: env, actions, stages, output",
    ("warmstart", "--outputt=x"): "there is no setting outputt (did you mean output?)",
    ("doctor", "tiny"): "tiny stands alone; settings are given as --key value",
}


@pytest.mark.parametrize("arguments", OTHER_COMMANDS, ids=" ".join)
def test_every_command_refuses_what_it_does_not_know(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    assert refusal(*arguments) == "2"
    assert capsys.readouterr().err == f"vagentrl: {OTHER_COMMANDS[arguments]}\n"


CONFLICTS = {
    ("--data.env=vagentrl.environment.Environment",): (
        "data.env is vagentrl.Environment, which is abstract"
    ),
    (CHECKPOINT, "--trainer.callbacks.mode=higher"): (
        "Lightning refuses a setting: `mode` can be min, max but got higher"
    ),
    (CHECKPOINT, "--trainer.callbacks.save_top_k=-2"): "Invalid value for save_top_k=-2",
    ("--trainer.strategy=nonsense",): "invalid strategy name: `strategy='nonsense'`",
    ("--trainer.devices=0",): "`Trainer(devices='0')` value is not a valid input",
    ("--trainer.accelerator=abacus",): "invalid accelerator name: `accelerator='abacus'`",
    ("--trainer.max_epochs=-3",): "`max_epochs` must be a non-negative integer or -1",
    ("--data.groups=-1",): "data.groups is -1; it must be at least 1",
    ("--model.optimizer.actor_lr=-1",): "model.optimizer.actor_lr is -1.0",
    ("--data.sampling.temperature=-1",): "temperature is -1.0; give 0 (greedy) or more",
    ("--ckpt_path=nope.ckpt",): "there is no checkpoint nope.ckpt; . holds none",
}


@pytest.mark.parametrize("settings", CONFLICTS, ids=" ".join)
def test_a_setting_that_cannot_work_is_refused_before_anything_is_played(
    settings: tuple[str, ...], run_dir: Path
):
    said = refusal("fit", *runs.arguments(*settings))
    assert said.startswith("vagentrl: ConfigError: ") and CONFLICTS[settings] in said
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("callback", "monitor", "said"),
    [
        ("ModelCheckpoint", "val/sucess_rate", "(did you mean val/success_rate?); there are"),
        ("EarlyStopping", "val/zzz", "is not logged; there are epoch, "),
        ("ModelCheckpoint", "rollout/retrun", "(did you mean rollout/return?)"),
    ],
)
def test_a_monitor_that_is_never_logged_is_refused_as_soon_as_that_is_known(
    callback: str, monitor: str, said: str, run_dir: Path
):
    watch = (
        f"--trainer.callbacks+=lightning.pytorch.callbacks.{callback}",
        f"--trainer.callbacks.monitor={monitor}",
    )
    told = refusal("fit", *runs.arguments(*watch))
    assert f"ConfigError: {callback}.monitor is {monitor!r}, which is not logged" in told
    assert said in told
    assert not list(Path("runs").rglob("*.ckpt"))


def test_monitors_that_are_logged_pass(run_dir: Path):
    run = runs.fit(
        *(CHECKPOINT, "--trainer.callbacks.monitor=val/success_rate"),
        *(CHECKPOINT, "--trainer.callbacks.monitor=rollout/return"),
    )
    assert any(isinstance(callback, CheckMonitors) for callback in runs.callbacks(run))
    assert run.model.iteration == 2
