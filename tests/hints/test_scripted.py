import pytest

from tests import toy
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.formats import NoThink
from vagentrl.hints import Exchange, HintKind, ScriptedHintModel, Situation
from vagentrl.types import Observation, Reply
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.support import CustomerSupport

ACTIONS = ("Up", "Down", "Left", "Right")


def corridor() -> FrozenLake:
    """Return a lake that is one row long; the solution is Right, Right, Right."""
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


def test_with_right_1_a_hint_to_exploit_names_the_oracles_next_action():
    hint = ScriptedHintModel(right=1.0).hint(situation("exploit", corridor()))
    assert hint is not None
    assert (hint.text, hint.action) == ("Go Right.", "Right")
    assert (hint.prompt_tokens, hint.reply_tokens, hint.cost) == (0, 0, 0.0)


def test_hints_to_exploit_are_right_at_the_given_rate_and_err_uniformly():
    environment, hint_model = corridor(), ScriptedHintModel(right=0.7)
    hints = [hint_model.hint(situation("exploit", environment, turn)) for turn in range(3000)]
    shares = [sum(h is not None and h.action == a for h in hints) / 3000 for a in ACTIONS]
    # five standard deviations: sqrt(.7 * .3 / 3000) = 0.0084, sqrt(.1 * .9 / 3000) = .0055
    assert shares[3] == pytest.approx(0.7, abs=0.042)
    assert shares[:3] == pytest.approx([0.1] * 3, abs=0.028)


def test_a_hint_to_explore_names_an_action_not_tried_at_the_same_observation():
    hint_model, environment = ScriptedHintModel(), corridor()
    here = tuple(
        # A hint does not make the observation another one, and case does not matter in actions.
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
    assert named == set(ACTIONS)  # all actions were tried, so any may be named


def test_the_same_seeds_give_the_same_hints():
    environment, hint_model = corridor(), ScriptedHintModel(right=0.5)
    first = [hint_model.hint(situation("exploit", environment, turn)) for turn in range(50)]
    again = [hint_model.hint(situation("exploit", environment, turn)) for turn in range(50)]
    assert first == again
    assert len(set(first)) > 1


def test_without_an_oracle_there_is_no_hint_to_exploit():
    environment = toy.Countdown()
    environment.reset(0)
    assert ScriptedHintModel().hint(situation("exploit", environment)) is None


def test_actions_must_be_given_for_an_environment_without_action_names():
    environment = toy.Countdown()
    environment.reset(0)
    asked = situation("explore", environment)
    with pytest.raises(ConfigError, match="Countdown has no action_names and no random_actions"):
        ScriptedHintModel().hint(asked)
    hint = ScriptedHintModel(actions=("go",)).hint(asked)
    assert hint is not None
    assert hint.text == "Try go."


def test_an_environment_without_names_suggests_what_is_possible_in_its_state():
    environment = CustomerSupport(["device"], terse=True)
    environment.reset(0)
    plan = (environment.oracle() or ("",))[0]
    hint_model = ScriptedHintModel(right=0.5)
    hints = [hint_model.hint(situation("exploit", environment, turn)) for turn in range(400)]
    actions = [hint.action for hint in hints if hint is not None]
    assert len(actions) == 400
    assert actions.count(plan) / 400 == pytest.approx(0.5, abs=0.125)  # five standard deviations
    assert len(set(actions)) > 15
    tried = Exchange(Observation("here"), Reply("", actions=(plan,)))
    for turn in range(50):
        asked = situation("explore", environment, turn, (tried,), "here")
        hint = hint_model.hint(asked)
        assert hint is not None and hint.action != plan and hint == hint_model.hint(asked)


@pytest.mark.parametrize(
    "settings", [{"right": 1.2}, {"exploit_text": "Go!"}, {"explore_text": "Try {this}."}]
)
def test_settings_that_cannot_work_are_refused(settings: dict):
    with pytest.raises(ConfigError):
        ScriptedHintModel(**settings)
