"""`vagentrl evaluate`, as it is typed."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import toy
from tests.chat_server import says, serving
from tests.policy.trained import start, trained
from vagentrl.cli.main import main

GAME = {"class_path": "tests.toy.Countdown", "init_args": {"turn_limit": 5}}
NOTHING_BEFORE = {"class_path": "vagentrl.contexts.Window", "init_args": {"turns": 0}}
QUICK = ["--episodes", "2", "--quiet", "--sampling", '{"max_tokens": 8}']


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"data": {"env": GAME, "val_envs": {"images": GAME}}}))
    return str(path)


def test_policies_are_compared_on_the_environments_of_a_recipe(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    checkpoint, output = str(trained("text").checkpoint), tmp_path / "out"
    policies = [f"one={checkpoint}", f"two={checkpoint}"]
    arguments = ["evaluate", *policies, "--config", recipe, "--output", str(output), *QUICK]
    main([*arguments, "--compare", "one", "--samples", "2"])
    said = capsys.readouterr().out
    assert "| policy | mine | images |" in said and "pass@2" in said
    assert "| two | images | +0.000 | +0.000 to +0.000 | 1.0000 | 2 |" in said
    assert said.endswith((output / "report.md").read_text())
    assert len((output / "episodes.jsonl").read_text().splitlines()) == 2 * 2 * 2 * 2


def test_a_model_that_does_not_say_how_it_was_trained_plays_as_the_recipe_says(tmp_path: Path):
    pq = pytest.importorskip("pyarrow.parquet")

    def play(folder: str, **said: Any) -> list[list[dict[str, Any]]]:
        """The turns of each episode of a model that is no checkpoint, and of a run's."""
        path = tmp_path / f"{folder}.yaml"
        path.write_text(yaml.safe_dump({"data": {"env": GAME, **said}}))
        policies = [f"new={start(False)}", f"run={trained('text').checkpoint}"]
        command = ["evaluate", *policies, "--config", str(path), "--output", str(tmp_path / folder)]
        main([*command, "--episodes", "3", "--quiet"])
        files = (tmp_path / folder / "trajectories").glob("*.parquet")
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        rows.sort(key=lambda row: (row["policy"], row["seed"]))
        return [row["turns"] for row in rows]

    short = {"sampling": {"max_tokens": 3}}
    whole, window = play("whole", **short), play("window", **short, context=NOTHING_BEFORE)
    assert [len(turns[0]["reply_ids"]) for turns in whole] == [3] * 3 + [4] * 3
    for all_seen, last_seen in zip(whole[:3], window[:3], strict=True):
        assert last_seen[0]["reply_ids"] == all_seen[0]["reply_ids"]
        assert [turn["prompt_whole"] for turn in last_seen] == [True] * 5
        assert [turn["prompt_whole"] for turn in all_seen] == [True] + [False] * 4
    for before, after in zip(whole[3:], window[3:], strict=True):  # the run says it itself
        assert [turn["reply_ids"] for turn in after] == [turn["reply_ids"] for turn in before]


def test_a_config_may_name_policies_and_environments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with serving(says(toy.GO)) as (_, url):
        model = {
            "class_path": "vagentrl.chat.OpenAIChat",
            "init_args": {"model": "m", "url": url, "key_variable": None},
        }
        api = {"class_path": "vagentrl.evaluation.ChatPlayer", "init_args": {"model": model}}
        plan = {"policies": {"api": api, "mine": str(trained("text").checkpoint)}}
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump(plan | {"envs": {"go": GAME}}))
        main(["evaluate", "--config", str(path), "--output", str(tmp_path / "out"), *QUICK])
    said = capsys.readouterr().out
    assert "| policy | go |" in said
    assert "| api | 1.000 (" in said  # it says go
    episodes = (tmp_path / "out/episodes.jsonl").read_text().splitlines()
    assert {json.loads(line)["policy"] for line in episodes} == {"api", "mine"}


def test_the_worlds_of_a_mixture_have_columns_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    mixture = {
        "class_path": "vagentrl.Mixture",
        "init_args": {"worlds": {"short": GAME, "other": {"class_path": "tests.toy.Countdown"}}},
    }
    path = tmp_path / "mixed.yaml"
    path.write_text(yaml.safe_dump({"data": {"env": mixture}}))
    policy = str(trained("text").checkpoint)
    main(["evaluate", policy, "--config", str(path), "--output", str(tmp_path / "out"), *QUICK])
    assert "| policy | other | short |" in capsys.readouterr().out


def test_a_single_environment_is_called_as_its_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    policy, game = str(trained("text").checkpoint), ["--env", "tests.toy.Countdown"]
    limit = ["--env.turn_limit", "2"]
    main(["evaluate", policy, *game, *limit, "--output", str(tmp_path / "out"), *QUICK])
    assert "| policy | Countdown |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no policy is named"),
        (["a=x", "a=y"], "'a=y' is no policy with a name of its own"),
        (["=x"], "'=x' is no policy"),
        (["tiny-nothing"], "tiny-nothing"),
        (["a=tiny-sokoban-text", "--compare", "b"], "--compare is 'b'; the policies are a"),
        (["tiny-sokoban-text", "--episodes", "0"], "episodes is 0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    arguments: list[str], said: str, recipe: str, tmp_path: Path
):
    with pytest.raises(SystemExit, match=said):
        main(["evaluate", *arguments, "--config", recipe, "--output", str(tmp_path / "out")])


def test_without_an_environment_there_is_nothing_to_play(tmp_path: Path):
    with pytest.raises(SystemExit, match="no environment is named"):
        main(["evaluate", "tiny-sokoban-text", "--output", str(tmp_path / "out")])
    empty = tmp_path / "empty.yaml"
    empty.write_text("model: {}\n")
    with pytest.raises(SystemExit, match="empty names no environment"):
        main(["evaluate", "a", "--config", str(empty), "--output", str(tmp_path / "out")])


def test_the_folder_says_what_was_played_and_the_viewer_opens_it(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyarrow")
    policy, output = str(trained("text").checkpoint), tmp_path / "out"
    arguments = ["evaluate", f"one={policy}", "--output", str(output), *QUICK, "--store", "1"]
    for _ in range(2):  # the second goes on
        main([*arguments, "--env", "tests.toy.Countdown", "--env.turn_limit", "2"])
    written = yaml.safe_load((output / "config.yaml").read_text())
    assert written["policies"] == {"one": policy}
    assert written["envs"]["Countdown"]["init_args"] == {"images": False, "turn_limit": 2}
    capsys.readouterr()
    main(["view", str(output), "--export", str(tmp_path / "page")])
    assert capsys.readouterr().out.startswith("1 trajectories of ")
