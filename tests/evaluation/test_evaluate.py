"""Policies are played from the same states, and an interrupted evaluation goes on."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from tests import toy
from tests.end_to_end.environments import AlwaysRaising, Raising
from tests.policy.trained import trained
from vagentrl import Sampling
from vagentrl.environment import split_of
from vagentrl.errors import ConfigError
from vagentrl.evaluation import PlayedEpisode, Player, PolicyPlayer, evaluate
from vagentrl.evaluation.ledger import EPISODES, read_episodes
from vagentrl.evaluation.tables import by_cell, comparison_table, detail_table, success_table
from vagentrl.viewer.reading import read_run
from vagentrl.viewer.site import Site

GAME = partial(toy.Countdown, turn_limit=2)
SHORT = Sampling(max_tokens=8)


def player(sampling: Sampling = SHORT) -> PolicyPlayer:
    return PolicyPlayer(str(trained("text").checkpoint), sampling)


class Scripted(Player):
    """Succeeds with the seeds it is given; may be interrupted."""

    def __init__(self, wins: set[int] | None = None, until: int | None = None) -> None:
        self.wins, self.until, self.asked = wins or set(), until, []

    def identity(self) -> str:
        return "scripted"

    def play(self, name, environment, factory, starts, on_end) -> None:  # pyright: ignore
        for number, start in enumerate(starts):
            if number == self.until:
                raise KeyboardInterrupt
            self.asked.append(start)
            won = start.seed in self.wins
            on_end(PlayedEpisode(name, environment, *start, won, float(won), 1, "terminated"))


def test_every_policy_plays_the_same_held_out_states(tmp_path: Path):
    played = evaluate(
        {"a": player(), "b": str(trained("text").checkpoint)},
        {"game": GAME, "long": toy.Countdown},
        tmp_path,
        episodes=3,
        samples=2,
        progress=False,
    )
    keys = {episode.key for episode in played}
    assert len(keys) == len(played) == 2 * 2 * 3 * 2
    seeds = {name: {e.seed for e in played if e.policy == name} for name in "ab"}
    assert seeds["a"] == seeds["b"] and {split_of(seed) for seed in seeds["a"]} == {"test"}
    assert all(0 < e.turns <= 2 for e in played if e.environment == "game")
    assert all(episode.reply_tokens > 0 for episode in played)
    assert set(played[0].metrics) == {"luck"}


def test_samples_of_a_seed_differ_and_the_first_is_the_policys_own(tmp_path: Path):
    policy = player().policy
    [seed] = {e.seed for e in evaluate({"a": player()}, {"g": GAME}, tmp_path, episodes=1,
                                       samples=4, progress=False)}  # fmt: skip
    played = policy.play_starts(GAME, [(seed, n) for n in range(4)], sampling=SHORT)
    said = [[turn.reply_ids for turn in each.turns] for each in played]
    [own] = policy.evaluate(GAME, [seed], sampling=SHORT)
    assert said[0] == [turn.reply_ids for turn in own.turns]
    assert len({str(each) for each in said}) == 4


def test_an_interrupted_evaluation_goes_on_and_ends_as_a_whole_one(tmp_path: Path):
    settings = {"envs": {"g": GAME}, "episodes": 4, "samples": 2, "progress": False}
    whole = evaluate({"a": player()}, output=tmp_path / "whole", **settings)
    half = tmp_path / "half"
    evaluate({"a": player()}, output=half, **settings)
    lines = (half / EPISODES).read_text().splitlines()
    (half / EPISODES).write_text("\n".join([*lines[:3], lines[3][:40]]))  # as a kill leaves it
    again = evaluate({"a": player()}, output=half, **settings)
    assert sorted(again, key=lambda e: e.key) == sorted(whole, key=lambda e: e.key)
    kept = [e.key for e in read_episodes(half / EPISODES)]
    assert len(kept) == len(set(kept)) == 8


def test_only_what_is_missing_is_played(tmp_path: Path):
    settings = {"envs": {"g": GAME}, "output": tmp_path, "episodes": 4, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        evaluate({"a": Scripted(until=3)}, **settings)
    rest = Scripted()
    assert len(evaluate({"a": rest}, **settings)) == 4
    assert len(rest.asked) == 1


def test_failed_episodes_are_told_and_played_again(tmp_path: Path):
    settings = {"output": tmp_path, "episodes": 8, "progress": False}
    played = evaluate({"a": player()}, {"g": Raising}, **settings)
    failed = [episode for episode in played if episode.error is not None]
    assert 0 < len(failed) < 8 and "RuntimeError: the" in str(failed[0].error)
    rest = evaluate({"a": player()}, {"g": GAME}, **settings)  # it is mended
    assert len(rest) == 8 and not any(episode.error for episode in rest)


def test_one_broken_environment_does_not_end_the_others(tmp_path: Path):
    played = evaluate(
        {"a": player()}, {"bad": AlwaysRaising, "g": GAME}, tmp_path, episodes=2, progress=False
    )
    assert [e.error is None for e in played if e.environment == "g"] == [True, True]
    assert all(e.error for e in played if e.environment == "bad")


def test_a_folder_with_something_else_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="holds other things"):
        evaluate({"a": Scripted()}, {"g": GAME}, tmp_path, progress=False)
    evaluate({"a": Scripted()}, {"g": GAME}, tmp_path / "one", episodes=2, progress=False)
    with pytest.raises(ConfigError, match=r"other settings \(seeds was .*; samples was 1\)"):
        evaluate({"a": Scripted()}, {"g": GAME}, tmp_path / "one", samples=2, progress=False)


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"samples": 0}, {"policies": {}}, {"envs": {}}])
def test_settings_that_play_nothing_are_refused(tmp_path: Path, wrong: dict):
    settings = {"policies": {"a": Scripted()}, "envs": {"g": GAME}, "output": tmp_path}
    with pytest.raises(ConfigError, match=r"at least one|give 1 or more"):
        evaluate(**(settings | wrong))


def test_more_training_is_another_policy(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    before = PolicyPlayer(str(model)).identity()
    (model / "weights").touch()
    os.utime(model / "weights", (2e9, 2e9))
    assert PolicyPlayer(str(model)).identity() != before


def episode(policy: str, seed: int, sample: int, success: bool) -> PlayedEpisode:
    return PlayedEpisode(policy, "g", seed, sample, success, 1.0 + success, 3, "terminated", 10)


def test_the_tables_say_what_was_played():
    wins = {"old": [1, 0, 0, 0], "new": [1, 1, 1, 0]}
    played = [
        episode(policy, seed, 0, bool(won))
        for policy, each in wins.items()
        for seed, won in enumerate(each)
    ]
    cells = by_cell(played)
    rates = success_table(cells, ["old", "new"], ["g", "h"]).splitlines()
    assert rates[0] == "| policy | g | h |"
    assert rates[2].startswith("| old | 0.250 (0.") and rates[2].endswith("| – |")
    details = detail_table(cells, 1).splitlines()
    assert details[2] == "| old | g | 4 | 1.250 | 3.0 | 10 | – |"
    compared = comparison_table(cells, ["old", "new"], ["g"], "old").splitlines()
    assert compared[2].startswith("| new | g | +0.500 | ") and compared[2].endswith("| 4 |")
    assert len(compared) == 3
    with pytest.raises(ConfigError, match="the policies are old, new"):
        comparison_table(cells, ["old", "new"], ["g"], "older")


def test_pass_at_k_has_a_column_for_each_power_of_two():
    cells = by_cell([episode("a", seed, n, n == 0) for seed in (1, 2) for n in range(3)])
    head, _, row = detail_table(cells, 3).splitlines()
    assert "pass@2 | pass@3" in head
    assert "| 6 | 0.667 | 1.000 |" in row  # 1 - C(2, 2) / C(3, 2)


def test_a_line_of_the_file_is_json(tmp_path: Path):
    evaluate({"a": Scripted({3})}, {"g": GAME}, tmp_path, episodes=1, progress=False)
    [line] = (tmp_path / EPISODES).read_text().splitlines()
    assert json.loads(line)["success"] is True  # seed 3 is the first of the test split


def stored(output: Path) -> dict[str, list]:
    """The columns of the page's list, each episode once."""
    columns = json.loads(Site(read_run(output)).data("index"))["columns"]
    assert len(set(columns["episode"])) == len(columns["episode"])
    return columns


def test_the_first_episodes_of_each_policy_are_stored_to_be_looked_at(tmp_path: Path):
    pytest.importorskip("pyarrow")
    players = {"a": player(), "b": player()}
    evaluate(players, {"g": GAME}, tmp_path, episodes=4, samples=2, progress=False, store=6)
    site = Site(read_run(tmp_path))
    index, columns = json.loads(site.data("index")), stored(tmp_path)
    assert index["names"]["policy"] == ["a", "b"] and columns["policy"] == [0] * 6 + [1] * 6
    # seeds of the test split; each is a group, whose members are its samples
    order = [("3", 0, 0), ("3", 0, 1), ("7", 1, 0), ("7", 1, 1), ("11", 2, 0), ("11", 2, 1)]
    for half in (slice(0, 6), slice(6, 12)):
        found = zip(*(columns[name][half] for name in ("seed", "group", "member")), strict=True)
        assert sorted(found) == sorted(order)
    row = site.row(json.dumps(["a", "g", 7, 1]))
    assert (row["split"], row["iteration"]) == ("test", players["a"].iteration)
    assert row["turns"][0]["reply_tokens"] and row["turns"][0]["logprobs"]


def test_resumed_and_failed_episodes_are_stored_once_each(tmp_path: Path):
    pytest.importorskip("pyarrow")
    settings = {"output": tmp_path, "episodes": 8, "progress": False}
    evaluate({"a": player()}, {"g": Raising}, **settings)
    columns = stored(tmp_path)
    failed = sum(error is not None for error in columns["error"])
    assert len(columns["episode"]) == 8 and 0 < failed < 8
    lines = (tmp_path / EPISODES).read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["error"] is None][1:]
    (tmp_path / EPISODES).write_text("".join(f"{line}\n" for line in kept))  # one was not noted
    evaluate({"a": player()}, {"g": GAME}, **settings)  # it is mended
    columns = stored(tmp_path)
    assert len(columns["episode"]) == 8 and columns["error"] == [None] * 8


def test_nothing_is_stored_where_nobody_wants_it_or_pyarrow_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = {"envs": {"g": GAME}, "episodes": 1, "progress": False}
    evaluate({"a": player()}, output=tmp_path / "off", store=0, **settings)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    evaluate({"a": player()}, output=tmp_path / "without", **settings)
    for name in ("off", "without"):
        assert not (tmp_path / name / "trajectories").exists()
    with pytest.raises(ConfigError, match="need pyarrow"):
        evaluate({"a": player()}, output=tmp_path / "wanted", store=3, **settings)
    with pytest.raises(ConfigError, match="store is -1"):
        evaluate({"a": player()}, output=tmp_path / "wrong", store=-1, **settings)
