import pytest

from tests import toy
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.formats import NoThink
from vagentrl.hints import Exchange, HintKind, ScriptedHintModel, Situation
from vagentrl.types import Observation, Reply
from vagentrl_envs.frozen_lake import FrozenLake

ACTIONS = ("Up", "Down", "Left", "Right")


def corridor() -> FrozenLake:
    """The way is Right, Right, Right."""
    environment = FrozenLake(map=["SFFG"], observation="text", format=NoThink())
    environment.reset(0)
    return environment


def situation(
    kind: HintKind,
    environment: Environment,
    turn: int = 0,
    past: tuple[Exchange, ...] = (),
    text: str = "PEEG",
) -> Situation:
    return Situation(kind, environment, past, Observation(text), (2, 5, turn))


def test_an_oracle_that_is_always_right_names_the_next_action():
    hint = ScriptedHintModel(right=1.0).hint(situation("exploit", corridor()))
    assert hint is not None
    assert (hint.text, hint.action) == ("Go Right.", "Right")
    assert (hint.prompt_tokens, hint.reply_tokens, hint.cost) == (0, 0, 0.0)


def test_an_oracle_is_right_as_often_as_it_is_told_and_errs_evenly():
    environment, hint_model = corridor(), ScriptedHintModel(right=0.7)
    hints = [hint_model.hint(situation("exploit", environment, turn)) for turn in range(3000)]
    shares = [sum(h is not None and h.action == a for h in hints) / 3000 for a in ACTIONS]
    # five standard deviations: sqrt(.7 * .3 / 3000) = 0.0084, sqrt(.1 * .9 / 3000) = .0055
    assert shares[3] == pytest.approx(0.7, abs=0.042)
    assert shares[:3] == pytest.approx([0.1] * 3, abs=0.028)


def test_exploration_names_what_was_not_tried_where_the_agent_saw_the_same():
    hint_model, environment = ScriptedHintModel(), corridor()
    here = tuple(
        # with a hint or without, the agent saw the same; its spelling does not matter
        Exchange(Observation("here", hint=hint), Reply("", actions=(action,)))
        for hint, action in (("", "up"), ("Go Up.", "Down"), ("", "Right"))
    )
    elsewhere = Exchange(Observation("there"), Reply("", actions=("Left",)))
    for turn in range(20):
        asked = situation("explore", environment, turn, (*here, elsewhere), text="here")
        hint = hint_model.hint(asked)
        assert hint is not None
        assert hint.text == "Try Left."
    everything = (*here, Exchange(Observation("here"), Reply("", actions=("Left",))))
    named = {
        hint.action
        for turn in range(60)
        if (hint := hint_model.hint(situation("explore", environment, turn, everything, "here")))
    }
    assert named == set(ACTIONS)  # nothing is left, so anything


def test_hints_follow_from_the_seeds():
    environment, hint_model = corridor(), ScriptedHintModel(right=0.5)
    first = [hint_model.hint(situation("exploit", environment, turn)) for turn in range(50)]
    again = [hint_model.hint(situation("exploit", environment, turn)) for turn in range(50)]
    assert first == again
    assert len(set(first)) > 1


def test_without_an_oracle_there_is_nothing_to_exploit():
    environment = toy.Countdown()
    environment.reset(0)
    assert ScriptedHintModel().hint(situation("exploit", environment)) is None


def test_an_environment_that_names_no_actions_needs_some():
    environment = toy.Countdown()
    environment.reset(0)
    asked = situation("explore", environment)
    with pytest.raises(ConfigError, match="Countdown names no actions; give some"):
        ScriptedHintModel().hint(asked)
    hint = ScriptedHintModel(actions=("go",)).hint(asked)
    assert hint is not None
    assert hint.text == "Try go."


@pytest.mark.parametrize(
    "settings", [{"right": 1.2}, {"exploit_text": "Go!"}, {"explore_text": "Try {this}."}]
)
def test_what_cannot_work_is_refused(settings: dict):
    with pytest.raises(ConfigError):
        ScriptedHintModel(**settings)
