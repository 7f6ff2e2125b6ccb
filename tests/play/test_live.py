"""What the page can ask: games, and other ways on from stored turns."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import toy
from tests.play.runs import make_run, play
from tests.policy.trained import start, trained
from tests.viewer.stored import store
from vagentrl.cli.live import _games
from vagentrl.errors import ConfigError, EnvError
from vagentrl.play.live import MOST_GAMES, LiveGames
from vagentrl.viewer.reading import BRANCHES, FOLDER, read_run
from vagentrl.viewer.site import Site

WALK = "tests.play.games.Walk"
ANSWER = "<think></think><answer>{}</answer>"


@contextmanager
def live(run: Path, timeout_s: float = 60.0, policy: str | None = None) -> Iterator[Any]:
    """Asks as the page does: a function of an action and its fields."""
    games, offer = _games(run, "127.0.0.1", None, policy, "thread", timeout_s)
    assert isinstance(games, LiveGames), offer

    def ask(action: str, **asked: Any) -> dict[str, Any]:
        told = games(Site(read_run(run)), action, asked)
        json.dumps(told)
        return dict(told)

    ask.games = games  # pyright: ignore
    yield ask
    games.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path, WALK, {0: ["Right", "Left", "Left"], 2: ["Right"] * 3})


def columns(run: Path) -> dict[str, list]:
    return json.loads(Site(read_run(run)).data("index"))["columns"]


def test_another_reply_leads_to_a_branch_beside_the_episode(run: Path):
    before = Site(read_run(run)).row("train-000003/0")
    with live(run) as ask:
        told = ask("branch", episode="train-000003/0", turn=1)
        assert told["disagreement"] is None and told["shared"] == 1
        assert told["now"]["observation"] == "at 1" and len(told["turns"]) == 1
        assert ask("advice", game=told["game"]) == {
            "actions": ("Right",), "reply": "Right", "steps": 2
        }  # fmt: skip
        for _ in range(2):
            told = ask("reply", game=told["game"], text="right", exactly=False)
        assert (told["stop"], told["success"], told["return"]) == ("terminated", True, 3.0)
        with pytest.raises(ConfigError, match="the episode is over"):
            ask("reply", game=told["game"], text="Right", exactly=False)
    site = Site(read_run(run))
    assert site.row("train-000003/0") == before
    branch = site.row(told["game"])
    assert [t["actions"] for t in branch["turns"]] == [["Right"], ["right"], ["right"]]
    assert (branch["policy"], branch["origin"], branch["origin_turn"]) == (
        "person", "train-000003/0", 1
    )  # fmt: skip
    assert (branch["iteration"], branch["transition_seed"], branch["stop"]) == (3, 11, "terminated")
    found = columns(run)
    assert found["origin"] == [None, None, 0] and found["originTurn"] == [None, None, 1]
    assert list((run / FOLDER).glob("episodes*")) == []  # the run's own folder is left alone
    assert len(list((run / BRANCHES).glob("*.parquet"))) == 1  # joined at the end


def test_a_branch_can_branch_and_a_cut_episode_can_go_on(run: Path):
    with live(run) as ask:
        first = ask("branch", episode="train-000003/0", turn=3)  # after its last turn
        assert first["now"]["observation"] == "at -1"
        first = ask("reply", game=first["game"], text="Right", exactly=False)
        second = ask("branch", episode=first["game"], turn=4)
        ask("reply", game=second["game"], text="Right", exactly=False)
    found = columns(run)
    rows = {episode: row for row, episode in enumerate(found["episode"])}
    assert found["origin"][rows[second["game"]]] == rows[first["game"]]
    assert found["length"] == [3, 3, 4, 5]


@pytest.mark.parametrize("turn", [3, 4, -1])
def test_nothing_follows_the_end_of_an_episode(run: Path, turn: int):
    with live(run) as ask, pytest.raises(ConfigError, match=r"has 3 turns; none can follow"):
        ask("branch", episode="train-000003/1", turn=turn)  # it has terminated


def test_a_replay_that_differs_is_told(tmp_path: Path):
    drifts = "tests.play.games.Drifts"
    make_run(tmp_path, drifts, {0: ["a", "b", "c"]})
    with live(tmp_path) as ask:
        assert ask("branch", episode="train-000003/0", turn=0)["disagreement"] is None
        told = ask("branch", episode="train-000003/0", turn=2)["disagreement"]
        assert (told["turn"], told["what"]) == (2, "observation")
        assert told["stored"].startswith("world ") and told["stored"] != told["found"]
        last = ask("branch", episode="train-000003/0", turn=1)["disagreement"]
        assert last["turn"] == 2  # what is seen now is compared too


def test_other_rewards_are_told(tmp_path: Path):
    make_run(tmp_path, WALK, {0: ["Right", "Left"]})
    scaled = {"class_path": WALK, "init_args": {"reward_scale": 2.0}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": {"env": scaled}}))
    with live(tmp_path) as ask:
        told = ask("branch", episode="train-000003/0", turn=1)["disagreement"]
    assert told == {"turn": 1, "what": "reward", "stored": "1", "found": "2"}


def test_an_episode_that_ends_earlier_now_cannot_be_branched(tmp_path: Path):
    make_run(tmp_path, WALK, {0: ["Right", "Left", "Left"]})
    short = {"class_path": WALK, "init_args": {"turn_limit": 1}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": {"env": short}}))
    with live(tmp_path) as ask:
        with pytest.raises(ConfigError, match=r"ends after turn 1 \(truncated\)"):
            ask("branch", episode="train-000003/0", turn=2)
        with pytest.raises(ConfigError, match=r"over after turn 1 \(truncated\)"):
            ask("branch", episode="train-000003/0", turn=1)


def test_a_reply_that_a_limit_cut_off_is_replayed_as_one(tmp_path: Path):
    make_run(tmp_path, WALK, {0: ["Right", "Right"]})
    [file] = (tmp_path / FOLDER).glob("*.parquet")
    import pyarrow.parquet as parquet

    table = parquet.read_table(file)
    rows = table.to_pylist()
    rows[0]["turns"][0] |= {"finish": "length", "problem": "no end", "reward": -0.1}
    rows[0]["turns"][1] |= {"observation": "at 0"}
    parquet.write_table(table.from_pylist(rows, table.schema), file)
    with live(tmp_path) as ask:
        told = ask("branch", episode="train-000003/0", turn=1)
    assert told["disagreement"] is None
    assert told["turns"][0]["problem"] == "no end" and told["now"]["observation"] == "at 0"


def test_an_episode_without_its_beginning_cannot_be_branched(tmp_path: Path):
    make_run(tmp_path, WALK, {})
    store(tmp_path, [play(WALK, ["Right"], 0, earlier_turns=2)], iteration=1)
    with live(tmp_path) as ask, pytest.raises(ConfigError, match="2 earlier turns"):
        ask("branch", episode="train-000001/0", turn=0)


def test_an_environment_that_fails_or_hangs_costs_its_game_alone(tmp_path: Path):
    make_run(tmp_path, "tests.play.games.Breaks", {0: ["a", "b"]})
    with live(tmp_path) as ask:
        told = ask("branch", episode="train-000003/0", turn=1)
        assert told["now"]["observation"].startswith("\x1b[2Jcleared")
        told = ask("reply", game=told["game"], text="raise", exactly=True)
        assert told["stop"] == "failed" and "RuntimeError" in told["error"]
        with pytest.raises(EnvError, match="no oracle"):
            ask("advice", game=ask("branch", episode="train-000003/0", turn=1)["game"])
    with live(tmp_path, timeout_s=0.5) as ask:
        told = ask("branch", episode="train-000003/0", turn=1)
        told = ask("reply", game=told["game"], text="hang", exactly=True)
        assert "did not answer" in told["error"]
        assert ask("branch", episode="train-000003/0", turn=1)["stop"] is None


def test_new_games_are_played_and_stored(run: Path):
    with live(run) as ask:
        assert ask("environments") == {
            "environments": ["train"], "splits": ["train", "validation", "test"]
        }  # fmt: skip
        asked = {"environment": "train", "split": "test", "seed": ""}
        told = ask("start", **asked)
        assert (told["seed"], told["split"], told["origin"]) == ("3", "test", None)
        assert told["prompt"] == "Go right." and told["actions"] == ("Left", "Right")
        ask("reply", game=told["game"], text="Right", exactly=False)
        assert ask("start", **asked | {"seed": "4611686018427387903"})["seed"] == str(2**62 - 1)
    row = Site(read_run(run)).row(told["game"])
    assert (row["split"], row["seed"], row["origin"]) == ("test", 3, None)


@pytest.mark.parametrize(
    ("action", "asked", "said"),
    [
        ("launch", {}, "asks for 'launch'"),
        ("branch", {}, "sent no episode"),
        ("branch", {"episode": "x", "turn": 0}, "no trajectory 'x'"),
        ("branch", {"episode": "../../etc/passwd", "turn": 0}, "no trajectory"),
        ("branch", {"episode": "train-000003/0", "turn": True}, "sent no turn"),
        ("branch", {"episode": "train-000003/0", "turn": 10**30}, "none can follow"),
        ("reply", {"game": "x", "text": "a"}, "closed"),
        ("reply", {"game": ["x"], "text": "a"}, "sent no game"),
        ("start", {"environment": "os.system", "split": "train", "seed": ""}, "no environment"),
        ("start", {"environment": "train", "split": "x", "seed": ""}, "split is 'x'"),
        ("start", {"environment": "train", "split": "train", "seed": "-1"}, "seed is '-1'"),
        ("start", {"environment": "train", "split": "train", "seed": "9" * 400}, "seed is '99"),
        ("start", {"environment": "train", "split": "train", "seed": "٣"}, "seed is"),
        (
            "sample",
            {"game": "x", "policy": "/etc/passwd", "samples": 1, "whole": True},
            "no policy '/etc/passwd'",
        ),
    ],
)
def test_requests_that_make_no_sense_are_refused(run: Path, action: str, asked: dict, said: str):
    with live(run) as ask, pytest.raises(ConfigError, match=said):
        ask(action, **asked)


def test_many_games_are_closed_and_one_answers_one_request_at_a_time(run: Path):
    with live(run) as ask:
        asked = {"environment": "train", "split": "train", "seed": ""}
        names = [ask("start", **asked)["game"] for _ in range(MOST_GAMES + 1)]
        with pytest.raises(ConfigError, match="closed"):
            ask("advice", game=names[0])
        seat = ask.games._seats[names[1]]
        with seat.busy, pytest.raises(ConfigError, match="still waits"):
            ask("advice", game=names[1])
        assert ask("advice", game=names[1])["steps"] == 3


def test_a_full_disk_is_told(run: Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: object, *row: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vagentrl.viewer.episodes.EpisodeFolder.add", full)
    with live(run) as ask:
        told = ask("branch", episode="train-000003/0", turn=1)
        with pytest.raises(ConfigError, match=r"cannot be stored: .*No space"):
            ask("reply", game=told["game"], text="Right", exactly=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is missing, which says what was played; name the recipe with --recipe"),
        ("model: {}", "does not say what was played"),
        ("- a", "does not say what was played"),
        ("{", "does not say what was played"),
    ],
)
def test_without_a_configuration_nothing_can_be_played(run: Path, text: str | None, said: str):
    (run / "config.yaml").unlink()
    if text is not None:
        (run / "config.yaml").write_text(text)
    games, offer = _games(run, "127.0.0.1", None, None, "thread", 60.0)
    assert games is None and said in str(offer.problem)
    other = run / "recipe.yaml"
    other.write_text(yaml.safe_dump({"data": {"env": WALK}}))
    assert _games(run, "127.0.0.1", str(other), None, "thread", 60.0)[0] is not None


def test_on_another_address_nothing_can_be_played(run: Path):
    games, offer = _games(run, "0.0.0.0", None, None, "thread", 60.0)
    assert games is None and "because it runs code" in str(offer.problem)


def test_environments_that_cannot_be_made_are_told(run: Path):
    (run / "config.yaml").write_text(yaml.safe_dump({"data": {"env": "no.such.Class"}}))
    with live(run) as ask, pytest.raises(ConfigError, match="cannot be made"):
        ask("branch", episode="train-000003/0", turn=0)


def test_checkpoints_of_the_run_may_be_asked_the_last_first(run: Path):
    (run / "checkpoints").mkdir()
    for name in ("a", "last"):
        (run / "checkpoints" / f"{name}.ckpt").touch()
    games, offer = _games(run, "127.0.0.1", None, "tiny-frozen-lake-text", "thread", 60.0)
    assert games is not None
    assert offer.policies[0] == "tiny-frozen-lake-text" and set(offer.policies[1:]) == {"a", "last"}


def test_a_checkpoint_plays_on_several_times(tmp_path: Path):
    toy_game = {"class_path": "tests.toy.Countdown", "init_args": {"turn_limit": 4}}
    make_run(tmp_path, toy_game, {3: ["wait", "wait", "wait"]})  # from 4: it cannot be won
    with live(tmp_path, policy=str(trained("text").checkpoint)) as ask:
        [policy] = ask.games.policies
        game = ask("branch", episode="train-000003/0", turn=1)["game"]
        ask("reply", game=game, text="go", exactly=False)
        asked = {"game": game, "policy": policy}
        whole = ask("sample", **asked, samples=3, whole=True)
        again = ask("sample", **asked, samples=3, whole=True)
        single = ask("sample", **asked, samples=1, whole=False)
        assert [len(told["branches"]) for told in (whole, again, single)] == [3, 3, 1]
        assert whole["errors"] == []
        for samples in (0, 17):
            with pytest.raises(ConfigError, match=f"samples is {samples}"):
                ask("sample", **asked, samples=samples, whole=True)
    site = Site(read_run(tmp_path))
    rows = [site.row(name) for told in (whole, again) for name in told["branches"]]
    said = [tuple(turn["reply"] for turn in row["turns"]) for row in rows]
    assert {replies[:2] for replies in said} == {(toy.WAIT, toy.GO)}  # what came before
    assert len(set(said)) > 3  # asked again, it samples anew
    for row in rows:
        assert (row["policy"], row["origin"], row["origin_turn"]) == (policy, "train-000003/0", 1)
        assert row["earlier_turns"] == 0 and row["stop"] in ("terminated", "truncated")
        assert [bool(turn["reply_ids"]) for turn in row["turns"]] == [False] * 2 + [True] * (
            len(row["turns"]) - 2
        )
        assert {dict(turn["metrics"])["luck"] for turn in row["turns"]} == {
            11.0
        }  # the same episode
    assert site.row(single["branches"][0])["stop"] == "cut"
    assert len(site.row(single["branches"][0])["turns"]) == 3


def test_a_model_that_no_run_has_saved_plays_on_as_the_recipe_says(tmp_path: Path):
    game = {"class_path": "tests.toy.Countdown", "init_args": {"turn_limit": 4}}
    make_run(tmp_path, game, {3: ["wait", "wait", "wait"]})
    config = tmp_path / "config.yaml"
    said = yaml.safe_load(config.read_text())
    said["data"] |= {
        "context": {"class_path": "vagentrl.contexts.Window", "init_args": {"turns": 0}},
        "sampling": {"max_tokens": 3},
    }
    config.write_text(yaml.safe_dump(said))
    with live(tmp_path, policy=str(start(False))) as ask:
        branch = ask("branch", episode="train-000003/0", turn=1)["game"]
        [policy] = ask.games.policies
        sampled = ask("sample", game=branch, policy=policy, samples=1, whole=True)
    turns = Site(read_run(tmp_path)).row(sampled["branches"][0])["turns"]
    assert [len(turn["reply_ids"]) for turn in turns] == [0, 3, 3, 3]
    assert all(turn["prompt_whole"] for turn in turns[1:])  # each sees its own turn alone
