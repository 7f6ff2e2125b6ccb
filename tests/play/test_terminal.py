"""A person plays in the terminal; what is typed is scripted."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.play.games import Breaks, Cannot, Counter, Walk
from vagentrl.cli.main import main
from vagentrl.errors import EnvError
from vagentrl.play.game import Factory, Game, GameStart
from vagentrl.play.terminal import Terminal, next_seed, visible
from vagentrl.viewer.reading import read_run
from vagentrl.viewer.server import ViewerServer
from vagentrl.viewer.site import Site


class Script:
    """Types lines, and notes what is shown."""

    def __init__(self, factory: Factory, *lines: str | type[BaseException]) -> None:
        self.shown: list[str] = []
        self.kept: list[tuple[int, int, str]] = []
        self._factory = factory
        self._lines: Iterator[str | type[BaseException]] = iter(lines)

    def begin(self, seed: int) -> Game:
        return Game(self._factory, GameStart("game", seed, 0), workers="thread")

    def ask(self, prompt: str) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def keep(self, game: Game) -> None:
        played = game.trajectory()
        self.kept.append((played.seed, len(played.turns), played.stop))

    def play(self, seed: int = 0) -> str:
        Terminal(self.begin, self.keep, self.ask, self.shown.append).play(seed)
        return "\n".join(self.shown)


def test_a_game_is_shown_advised_played_and_kept():
    script = Script(Walk, "?", "right", "Right", "/say oops", "Right", "/quit")
    said = script.play()
    for part in ("Go right.", "at 0", "advice: Right   (3 actions to the end)", "reward +1"):
        assert part in said
    assert "sent <think></think><answer>right</answer>" in said
    assert "sent oops [malformed: no <think>]\nreward -0.1" in said
    assert said.endswith("terminated: success, return +2.9 after 4 turns")
    assert script.kept[-1] == (0, 4, "terminated")


@pytest.mark.parametrize("leaving", [EOFError, KeyboardInterrupt])
def test_leaving_in_the_middle_keeps_what_was_played(leaving: type[BaseException]):
    script = Script(Walk, "Right", leaving)
    script.play()
    assert script.kept == [(0, 1, "cut")]


def test_commands_choose_the_episode():
    script = Script(
        Counter, "/help", "/prompt", "/actions", "/nonsense", "/seed x", "/next", "/again",
        "/seed 40", "/split test", "/next", "a", "/quit",
    )  # fmt: skip
    said = script.play()
    seeds = [line.split()[2] for line in said.splitlines() if line.startswith("--- seed")]
    assert seeds == ["0", "2", "2", "40", "3", "7"]
    assert script.kept == [(7, 1, "cut")]
    assert said.count("There is no command") == 2 and "Commands:" in said
    assert "replies are free text" in said


def test_the_next_episode_stays_in_its_split():
    assert [next_seed(seed) for seed in (0, 1, 3)] == [2, 5, 7]


def test_a_backslash_goes_on_in_the_next_line():
    script = Script(Counter, "first\\", "  second", EOFError)
    assert "sent first\n  second" in script.play()


def test_an_environment_that_fails_ends_its_episode_alone():
    said = Script(Breaks, "on", "raise", "", "x", "/quit").play()
    assert "The episode failed: RuntimeError" in said
    assert "\x1b" not in said and "\u202e" not in said  # hostile text moves nothing
    assert "<U+001B>[2Jcleared<U+202E>" in said and "<U+D800>" in said
    assert "failed: no success, return +0.5 after 1 turns" in said
    assert "--- seed 2 " in said
    assert "The oracle failed" in Script(Breaks, "?", EOFError).play()


def test_an_episode_that_cannot_begin_is_told():
    said = Script(Cannot, "/next", "/next", "/quit").play()
    assert "no such level" in said and "--- seed 4 " in said
    with pytest.raises(EnvError, match="no such level"):
        Script(Cannot).play(2)


def test_invisible_characters_are_named():
    assert visible("a\tb\n\x07\u200bé") == "a\tb\n<U+0007><U+200B>é"


# ----------------------------------------------------------------------------- the command


def play(monkeypatch: pytest.MonkeyPatch, typed: bytes, *arguments: str) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8")
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdin", stdin)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        main(["play", *arguments, "--workers", "thread"])
    stdout.seek(0)
    sys.stdout.write(stdout.buffer.read().decode("ascii"))


def test_games_of_the_command_are_opened_by_the_viewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyarrow")
    games = str(tmp_path / "games")
    arguments = ["tests.play.games.Walk", "--output", games]
    play(monkeypatch, b"Right\nRight\nRight\n\nLeft\n", *arguments)
    assert "2 played; look" in capsys.readouterr().out
    other = ["--env.actions_per_turn", "2", "--split", "test", "--seed", "11"]
    play(monkeypatch, "é\xff\n".encode("latin-1"), *arguments, *other)  # no UTF-8
    play(monkeypatch, b"", *arguments)  # nothing is played, so nothing is stored
    site = Site(read_run(games))
    assert site.trajectories == 3 and site.problems == []
    config = yaml.safe_load((tmp_path / "games/config.yaml").read_text())["envs"]
    assert list(config) == ["Walk", "Walk 2"]  # with other settings it is another environment
    assert config["Walk 2"]["init_args"]["actions_per_turn"] == 2
    main(["view", games, "--export", str(tmp_path / "page")])
    assert "3 trajectories of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no environment is named"),
        (["--split", "other", "Walk"], "split"),
        (["tests.play.games.Walk", "--seed", "-1"], "seed is -1"),
        (["tests.play.games.Walk", "--environment", "x"], "there is no environment 'x'"),
        (["tests.play.games.Cannot", "--seed", "2"], "no such level"),
    ],
)
def test_what_cannot_be_played_is_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(["play", *arguments, "--workers", "thread", "--output", str(tmp_path / "out")])
    assert said in f"{ended.value}{capsys.readouterr().err}"
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_things_is_not_written_to(tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="holds other things"):
        main(["play", "tests.play.games.Walk", "--output", str(tmp_path)])
    (tmp_path / "config.yaml").write_text("data: {}")
    with pytest.raises(SystemExit, match="holds no games"):
        main(["play", "tests.play.games.Walk", "--output", str(tmp_path)])


def test_an_environment_with_pictures_is_played_in_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyarrow")
    served: list[ViewerServer] = []
    monkeypatch.setattr(ViewerServer, "serve_forever", lambda self: served.append(self))
    arguments = ["play", "tests.toy.Countdown", "--env.images", "true", "--output"]
    main([*arguments, str(tmp_path / "page"), "--port", "0", "--workers", "thread"])
    assert "0 trajectories of" in capsys.readouterr().out
    assert served[0].site.live is not None and served[0].site.live.problem is None
    play(monkeypatch, b"go\n", *arguments[1:], str(tmp_path / "terminal"), "--page", "false")
    assert "[picture 1: 56 x 28 pixels; see --page]1 left" in capsys.readouterr().out
