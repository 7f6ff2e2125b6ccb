"""Every recipe parses, and builds everything but the weights."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import runs
from vagentrl.cli.main import main
from vagentrl.cli.trainer import VagentCLI
from vagentrl.models.load import load_model
from vagentrl_envs.sokoban import Sokoban

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
WARMSTARTS = sorted((CONFIGS / "warmstart").glob("*.yaml"))
RECIPES = sorted(set(CONFIGS.rglob("*.yaml")) - set(WARMSTARTS))
ALGORITHMS = sorted((CONFIGS / "recipes").glob("*.yaml"))
QWEN = ROOT / "tests/data/qwen2_5_vl_3b"
PUBLISHED = CONFIGS / "qwen/sokoban_vlm_3b.yaml"


def name(path: Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_builds(path: Path, capsys: pytest.CaptureFixture[str]):
    env = yaml.safe_load(path.read_text())["data"]["env"]
    if "crafter" in env["class_path"]:
        pytest.importorskip("crafter")
    worlds = env.get("init_args", {}).get("worlds", {"train": env})
    settings = [made.get("init_args", {}) for made in worlds.values()]
    images = any(each.get("observation") == "image" for each in settings)
    policy = str(QWEN) if path.parent.name == "qwen" else runs.checkpoint(images)
    main(["check", "--config", str(path), "--model_config", policy])
    printed = capsys.readouterr().out
    for world, made in worlds.items():
        assert f"environment {world}: {made['class_path'].split('.')[-1]}" in printed
    assert "everything but the weights can be built" in printed


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_steps_in_float32_with_an_eps_for_its_size(path: Path):
    recipe = yaml.safe_load(path.read_text())
    trainer, model = recipe["trainer"], recipe["model"]
    if model.get("dtype") == "bfloat16":  # then small steps are rounded away, unless ...
        assert trainer["strategy"].startswith("deepspeed")  # ... this keeps a copy in float32
    elif trainer["accelerator"] == "gpu":
        assert (model["dtype"], trainer["precision"]) == ("float32", "bf16-mixed")
    tiny = model["policy"].startswith(("tiny-", "runs/models/"))  # shipped, or made by warmstart
    assert model["optimizer"].get("eps") == ("1e-5" if tiny else None)  # YAML 1.1 text


@pytest.mark.parametrize("path", [p for p in RECIPES if p.parent != CONFIGS], ids=name)
def test_a_published_recipe_with_a_critic_says_what_a_limit_is(path: Path):
    recipe = yaml.safe_load(path.read_text())
    has_critic = recipe["model"]["advantage"]["class_path"].endswith("GAE")
    # Verlog's batches end in the middle of episodes, and bootstrap there.
    wanted = "bootstrap" if "turns" in recipe["data"] else "end"
    assert recipe["data"].get("at_limit") == (wanted if has_critic else None)


@pytest.mark.slow
@pytest.mark.parametrize("path", ALGORITHMS, ids=name)
def test_a_recipe_runs_and_learns_something(path: Path, run_dir: Path):
    run = VagentCLI(
        [
            "fit", "--config", str(path), "--trainer.limit_val_batches=0", "--trainer.max_epochs=2",
            "--data.groups=4", "--data.minibatch_size=16", "--model.entropy_coef=0.01",
        ]
    )  # fmt: skip
    assert run.model.iteration == 2
    start = load_model(run.model.policy_name)
    critic_only = run.model.warmup.rounds > 1
    unchanged = runs.fingerprint(run.model.actor.policy) == runs.fingerprint(start)
    assert unchanged == critic_only
    assert runs.summary(run)["failed_episodes"] == 0


@pytest.mark.parametrize("path", ALGORITHMS, ids=name)
def test_a_recipe_has_a_full_size_twin(path: Path):
    small = yaml.safe_load(path.read_text())
    full = yaml.safe_load((path.parent / "full" / path.name).read_text())
    for part in ("advantage", "policy_loss"):
        assert full["model"][part]["class_path"] == small["model"][part]["class_path"]
    assert full["model"].get("aggregation", {}).get("mode") == (
        small["model"].get("aggregation", {}).get("mode")
    )
    assert small["trainer"]["accelerator"] == "cpu"
    assert full["trainer"]["accelerator"] == "gpu"


@pytest.mark.parametrize("path", WARMSTARTS, ids=name)
def test_a_warm_start_parses(path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["warmstart", "--config", str(path), "--print_config"])
    assert ended.value.code in (0, None)
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["output"] == yaml.safe_load(path.read_text())["output"]


def test_the_published_model_has_its_published_size(capsys: pytest.CaptureFixture[str]):
    main(["check", "--config", str(PUBLISHED), "--model_config", str(QWEN)])
    printed = capsys.readouterr().out
    assert "devices 4" in printed and "strategy deepspeed_stage_2" in printed
    for model in ("actor", "reference"):
        row = next(line.split() for line in printed.splitlines() if line.startswith(model))
        assert row[1:3] == ["6.99", "3,754,622,976"]  # as in the checkpoint's index on the hub
    learning = next(line for line in printed.splitlines() if line.startswith("actor, to learn"))
    # bytes a parameter: 2 of the gradient, 4 + 4 of the moments and 4 of its copy, over 4 devices
    assert float(learning.split()[3]) == pytest.approx(3.7546 * 14 / 4 / 1.0737, abs=0.01)


def test_the_published_setting_is_the_published_one():
    recipe = yaml.safe_load(PUBLISHED.read_text())
    model, data = recipe["model"], recipe["data"]
    assert data["groups"] * data["group_size"] == 128
    assert data["minibatch_size"] == 32
    assert data["sampling"] == {"temperature": 0.7, "top_p": 0.95, "max_tokens": 200}
    assert data["env"]["init_args"]["turn_limit"] == 3
    assert data["env"]["init_args"]["format"]["class_path"].endswith(".WorldModeling")
    assert model["optimizer"] == {"actor_lr": "1e-6", "critic_lr": "1e-5"}  # YAML 1.1 text
    assert model["advantage"]["init_args"] == {
        "gamma": 1.0, "lam": 1.0, "turn_gamma": 0.95, "turn_lam": 1.0
    }  # fmt: skip
    assert model["policy_loss"]["init_args"] == {"clip_low": 0.2, "clip_high": 0.2}
    assert (model["value_clip"], model["entropy_coef"]) == (0.5, 0.001)
    assert recipe["trainer"]["max_epochs"] == 300
    assert {"coefficient": 0.001, "place": "reward"} in [
        callback.get("init_args") for callback in recipe["trainer"]["callbacks"]
    ]


def full(recipe: str) -> dict[str, Any]:
    return yaml.safe_load((CONFIGS / "recipes" / "full" / f"{recipe}.yaml").read_text())


def test_starpo_s_shapes_its_gradients_as_published():
    recipe = full("starpo_s")
    wanted = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
    assert recipe["model"]["policy_loss"]["init_args"] == wanted
    assert recipe["model"]["entropy_coef"] == 0.001
    assert recipe["data"]["filter"]["init_args"] == {"fraction": 0.25}
    assert (recipe["data"]["groups"], recipe["data"]["group_size"]) == (8, 16)
    assert not any("KLControl" in each["class_path"] for each in recipe["trainer"]["callbacks"])


def test_verlog_replaces_an_invalid_action_and_charges_for_it_as_published():
    recipe = full("verlog_dual_discount")
    settings = recipe["data"]["env"]["init_args"]
    assert settings["invalid_action"] == "default"
    assert settings["invalid_penalty"] == 0.1
    environment = Sokoban(default_action=settings["default_action"], invalid_action="default")
    assert environment.format_penalty == 0.1  # the default, for a malformed reply
    assert recipe["data"]["turns"] == 8 and settings["turn_limit"] == 128
    assert recipe["model"]["advantage"]["init_args"] == {
        "token_gamma": 1.0, "token_lam": 1.0, "step_gamma": 0.99, "step_lam": 0.95
    }  # fmt: skip
