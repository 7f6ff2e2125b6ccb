import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagentrl.claims.judge import Verdict
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.types import Claim, Representation, State
from vagentrl_envs.navigation import Navigation
from vagentrl_judges.egocentric import EgocentricF1

# The ball is 2.5 m away at -37 degrees; one sofa 3 m ahead, the other 4.1 m at 76 degrees.
TRUTH = '{"ball":[2.0,-1.5],"sofa":[[3.0,0.0],[1.0,4.0]]}'


def judge(
    text: str, representation: Representation = "natural", truth: str = TRUTH, **settings: Any
) -> Verdict:
    claim = Claim("observation", text, representation, State("", truth, ""))
    return asyncio.run(EgocentricF1(**settings).judge(claim))


BALL = '{"ball":[2.0,-1.5]}'


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("the ball is 2.5 m ahead-left", 1),
        ("The ball is 2.5 metres away, ahead and to the left.", 1),
        ("2.5 m ahead-left there is a ball", 1),
        ("the ball is 2 m ahead and 1.5 m to the left", 1),
        # Distance: a quarter of a metre, or 15 % of 2.5 m, which is 0.375.
        ("the ball is 2.8 m ahead-left", 1),
        ("the ball is 2.9 m ahead-left", 0),
        ("the ball is 2.0 m ahead-left", 0),
        # Direction: -37 degrees are 8 from ahead-left and 37 from ahead; 22.5 + 15 are allowed.
        ("the ball is 2.5 m ahead", 1),
        ("the ball is 2.5 m left", 0),
        ("the ball is 2.5 m ahead-right", 0),
        # In metres there are 15 degrees: (2, -0.8) is at -22 degrees and so just right, ...
        ("the ball is 2.3 m ahead and 0.95 m to the left", 1),
        ("the ball is 2.4 m ahead and 0.9 m to the left", 0),  # ... and this at -20.6 is not
        # without a distance: half of 1
        ("the ball is ahead-left", 0.5),
        ("the ball is behind me", 0),
        ("the ball is out of sight", 0),
        ("the ball is 2.5 m away", 0),
        ("the ball is not 2.5 m ahead-left", 0),
        ("the ball is 2.5 m ahead-left or 3 m right", 0),
        ("maybe the ball is 2.5 m ahead-left", 0),
        ("the ball is 2.5 m left and right", 0),
        ("", 0),
        # one statement more than there are balls costs the right one
        ("the ball is 2.5 m ahead-left; the ball is 9 m behind", 0),
        # repeated
        ("the ball is 2.5 m ahead-left; the ball is 2.5 m ahead-left", 1),
        # a thing that is not there is a class with 0: (1 + 0) / 2
        ("the ball is 2.5 m ahead-left; a chair is 1 m right", 1 / 2),
        ("the ball is 2.5 m ahead-left; a unicorn is 1 m right", 1),  # not a word of this world
    ],
)
def test_words_are_scored_with_tolerances(text: str, score: float):
    assert judge(text, truth=BALL).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"ball":[2.0,-1.5],"sofa":[[1.0,4.0],[3.0,0.0]]}', 1),
        ('{"ball":[2.1,-1.4],"sofa":[[3.2,0.1],[1.1,3.9]]}', 1),
        # one of two sofas: F1 = 2 * 1 / (1 + 0 + 2)
        ('{"ball":[2.0,-1.5],"sofa":[[3.0,0.0]]}', (1 + 2 / 3) / 2),
        ('{"ball":[2.0,-1.5],"sofa":[3.0,0.0]}', (1 + 2 / 3) / 2),
        # the same sofa twice: the second is a repetition
        ('{"ball":[2.0,-1.5],"sofa":[[3.0,0.0],[3.0,0.1]]}', (1 + 2 / 3) / 2),
        # a third that is wrong costs a right one: 2 * (2 - 1) / (3 + 2)
        ('{"ball":[2.0,-1.5],"sofa":[[3.0,0.0],[1.0,4.0],[9,9]]}', (1 + 2 / 5) / 2),
        ('{"ball":null,"sofa":[[3.0,0.0],[1.0,4.0]]}', 1 / 2),
        ('{"ball":[2.0,-1.5]}', 1 / 2),
        ("{}", 0),
        ("not JSON", 0),
        ("[" * 100_000, 0),
        ('{"ball":"there"}', 0),
        ('{"ball":[1e999,0]}', 0),
        ('{"ball":[NaN,0]}', 0),
        ('{"ball":[true,false]}', 0),
    ],
)
def test_json_is_scored_with_tolerances(text: str, score: float):
    assert judge(text, "structured").score == pytest.approx(score)


@pytest.mark.parametrize("text", ["the ball is out of sight", "I cannot see the ball"])
def test_a_hidden_thing_is_said_to_be_out_of_sight(text: str):
    hidden = '{"ball":null}'
    assert judge(text, truth=hidden).score == 1
    assert judge("the ball is 2 m ahead", truth=hidden).score == 0
    assert judge('{"ball":null}', "structured", truth=hidden).score == 1
    assert judge('{"ball":[1,1]}', "structured", truth=hidden).score == 0


def test_that_the_way_was_blocked_does_not_count():
    blocked = '{"ball":[2.0,-1.5],"blocked":true}'
    assert judge("the ball is 2.5 m ahead-left", truth=blocked).score == 1
    assert judge("the ball is 2.5 m right; the way was blocked", truth=blocked).score == 0


def test_naming_every_direction_earns_nothing():
    ways = ("ahead", "ahead-right", "right", "back-right", "back", "back-left", "left")
    everything = "; ".join(f"the ball is 2.5 m {way}" for way in (*ways, "ahead-left"))
    assert judge(everything, truth=BALL).score == 0


def test_every_state_of_the_world_earns_all_in_words_and_json():
    env = Navigation(rooms=2, furniture=5, turn_limit=40, observation="text")
    for tell_hidden in (True, False):
        env.tell_hidden = tell_hidden
        for seed in range(20):
            env.reset(seed)
            state = env.state()
            assert judge(state.natural, "natural", state.structured).score == 1, state
            assert judge(state.structured, "structured", state.structured).score == 1


def test_names_and_weights_can_be_set():
    assert judge("the orb is 2.5 m ahead-left", truth=BALL, names={"ball": ["orb"]}).score == 1
    assert judge("the couch is 3 m ahead", weights={"ball": 0}).score == pytest.approx(2 / 3)
    settings: list[dict[str, Any]] = [
        {}, {"weights": {"ball": 2}}, {"angle_tolerance": 5}, {"distance_tolerance": 1},
        {"relative_tolerance": 0.5}, {"direction_credit": 0}, {"names": {"ball": ["orb"]}},
    ]  # fmt: skip
    assert len({EgocentricF1(**each).identity() for each in settings}) == len(settings)


def test_states_and_claims_that_are_none_of_its_own_fail_the_judge():
    with pytest.raises(JudgeError, match="metres ahead"):
        judge("x", truth='{"player":[[1,2,3]]}')
    with pytest.raises(JudgeError, match="ExactState"):
        judge("x", "symbolic")


@pytest.mark.parametrize(
    "settings",
    [
        {"angle_tolerance": -1}, {"distance_tolerance": -1}, {"relative_tolerance": 1},
        {"direction_credit": 2}, {"weights": {"ball": -1}},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        EgocentricF1(**settings)


WORDS = "the a ball sofa is 2.5 m 1 metres ahead left right behind and or not out of sight , ; ."


@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(WORDS.split())).map(" ".join)))
def test_no_text_raises_an_error(text: str):
    for representation in ("natural", "structured"):
        assert 0 <= judge(text, representation).score <= 1
