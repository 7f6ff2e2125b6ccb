"""Recipes are found by name, from any folder."""

from pathlib import Path

import pytest

from vagentrl.cli import recipes
from vagentrl.cli.config_files import resolve_configs
from vagentrl.cli.main import main
from vagentrl.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sokoban_vlm", "sokoban_vlm.yaml"),
        ("recipes/gigpo", "recipes/gigpo.yaml"),
        ("gigpo", "recipes/gigpo.yaml"),  # not its full-size variant, which lies deeper
        ("full/gigpo", "recipes/full/gigpo.yaml"),
        ("bandit_tiny", "warmstart/bandit_tiny.yaml"),
    ],
)
def test_a_recipe_is_found_by_the_end_of_its_name(name: str, file: str, run_dir: Path):
    assert recipes.find_config(name) == CONFIGS / file


def test_a_file_that_exists_comes_before_a_recipe(run_dir: Path):
    Path("bandit").write_text("model: {policy: mine}")
    assert recipes.find_config("bandit") == Path("bandit")
    Path("gigpo").mkdir()  # a folder is no configuration
    assert recipes.find_config("gigpo") == CONFIGS / "recipes/gigpo.yaml"


def test_a_name_that_two_recipes_share_is_refused_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "maze.yaml").write_text("# A maze.")
    monkeypatch.setattr(recipes, "_folder", lambda: tmp_path)
    with pytest.raises(ConfigError, match="maze may mean several recipes: a/maze, b/maze"):
        recipes.find_config("maze")
    assert recipes.find_config("b/maze") == tmp_path / "b/maze.yaml"


@pytest.mark.parametrize(
    "arguments", [["--config", "bandit"], ["--config=bandit"], ["-c", "bandit"]], ids=" ".join
)
def test_names_become_paths_however_they_are_given(arguments: list[str], run_dir: Path):
    resolved = resolve_configs(["--data.groups", "3", *arguments, "--trainer.max_epochs=1"])
    assert " ".join(resolved) == " ".join(
        ["--data.groups", "3", *arguments, "--trainer.max_epochs=1"]
    ).replace("bandit", str(CONFIGS / "bandit.yaml"))


def test_every_recipe_begins_with_a_sentence_about_it(capsys: pytest.CaptureFixture[str]):
    main(["recipes"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(CONFIGS.rglob("*.yaml")))
    for line in lines:
        name, sentence = line.split(maxsplit=1)
        assert (CONFIGS / f"{name}.yaml").is_file()
        assert sentence.endswith(".") and 20 < len(sentence) <= 98, line


def test_a_recipe_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]):
    main(["recipes", "bandit"])
    assert capsys.readouterr().out == (CONFIGS / "bandit.yaml").read_text()
