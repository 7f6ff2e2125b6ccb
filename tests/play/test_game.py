"""A game is played reply by reply, and what is typed becomes a reply."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tests import toy
from tests.play.games import Breaks, Walk, claiming, thinking
from vagentrl.cli.check_env import installed_environments
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import NoThink, PlainText
from vagentrl.play.game import Game, GameStart, WorkerKind, spelt_out


@contextmanager
def playing(
    factory: Callable[[], Environment],
    seed: int = 4,
    workers: WorkerKind = "thread",
    timeout_s: float = 60.0,
) -> Iterator[Game]:
    start = GameStart("game", seed, 7)
    with closing(Game(factory, start, workers=workers, timeout_s=timeout_s)) as game:
        yield game


def test_a_game_is_played_to_its_end():
    with playing(toy.Countdown, seed=5) as game:  # from 2
        assert (game.observation.text, game.system_prompt) == ("2 left, luck 7", toy.TASK)
        assert game.reply("wait").reward == -0.25
        assert game.reply("go").reply.text == toy.GO
        assert game.stop is None and game.trajectory().stop == "cut"
        game.reply(toy.GO)  # a whole reply is as good
        played = game.trajectory()
        assert (played.stop, played.success, played.total_reward) == ("terminated", True, 0.5)
        assert played.final_observation is not None
        assert [turn.observation.text[0] for turn in played.turns] == ["2", "2", "1"]
        with pytest.raises(ConfigError, match=r"the episode is over \(terminated\)"):
            game.reply("go")


@pytest.mark.parametrize(
    ("form", "typed", "sent"),
    [
        (NoThink(), "Up", "<answer>Up</answer>"),
        (NoThink(), " Up , Down,", "<answer>Up,Down</answer>"),
        (NoThink(), "<answer>Up</answer>", "<answer>Up</answer>"),
        (NoThink(), "<answer>Up", "<answer>Up"),  # its tags are the person's own affair
        (NoThink(), "a</answer>b", "a</answer>b"),  # the format cannot carry it
        (NoThink(), ",", ","),
        (PlainText(), "print(1)", "print(1)"),
        (thinking().format, "Up", "<think></think><answer>Up</answer>"),
        (
            claiming().format,
            "Up",
            '<think><observation>"(not said)"</observation><prediction>"(not said)"</prediction>'
            "</think><answer>Up</answer>",
        ),
        (NoThink(action_separator=None), "x = 1, 2", "<answer>x = 1, 2</answer>"),
    ],
)
def test_bare_actions_are_written_as_the_format_wants_them(form, typed: str, sent: str):
    assert spelt_out(form, typed) == sent


def test_text_can_be_sent_exactly_as_it_stands():
    with playing(toy.Countdown) as game:
        turn = game.reply("go", exactly=True)
    assert turn.reply.problem == "no <answer>" and turn.reply.text == "go"


@pytest.mark.parametrize("factory", [thinking, claiming])
def test_the_oracle_advises_what_can_be_typed(factory: Callable[[], Walk]):
    with playing(factory) as game:
        advised = game.advice()
        assert advised == (("Right", "Right"), "Right,Right", 3)
        game.reply(advised.reply)
        game.reply(game.advice().reply)
        assert game.trajectory().success
        assert game.action_names == ("Left", "Right")


def test_an_oracle_that_fails_leaves_the_game_as_it_is():
    with playing(Breaks) as game:
        with pytest.raises(EnvError, match="no oracle"):
            game.advice()
        assert game.reply("anything").reward == 0.5


def test_an_environment_that_raises_ends_the_game_with_its_words():
    with playing(Breaks) as game:
        game.reply("on")
        with pytest.raises(EnvError, match=r"RuntimeError: the .*is gone"):
            game.reply("raise")
        played = game.trajectory()
    assert (played.stop, len(played.turns), played.final_observation) == ("failed", 1, None)
    assert str(played.error).startswith("EnvError: RuntimeError: the")


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_an_environment_that_hangs_is_given_up(workers: WorkerKind):
    with playing(Breaks, workers=workers) as game:
        game._timeout_s = 0.3
        with pytest.raises(EnvError, match=r"did not answer answer within 0\.3 s"):
            game.reply("hang")
        assert game.stop == "failed"
        with pytest.raises(ConfigError, match="over"):
            game.reply("on")
        with pytest.raises(EnvError, match="is closed"):
            game.advice()  # at once, not after another time-out


def test_an_environment_that_ends_its_process_ends_the_game():
    with playing(Breaks, workers="process") as game:
        with pytest.raises(EnvError, match=r"process ended|SystemExit"):
            game.reply("exit")
        assert game.stop == "failed"


@pytest.mark.parametrize(
    ("name", "kind"), list(installed_environments()), ids=lambda value: str(value)[-30:]
)
def test_every_installed_environment_can_be_played_by_hand(name: str, kind: type[Environment]):
    try:
        game = Game(kind, GameStart(name, 0, 1), workers="thread")
    except EnvError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise
    with closing(game):
        game.reply("\x00<image>\ud800")  # nonsense is answered
        if game.stop is None and (advised := game.advice()).actions:
            assert game.reply(advised.reply).reply.problem is None
