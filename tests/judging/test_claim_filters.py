from typing import Any

import pytest

from tests.judging.claims import claim
from vagentrl.errors import ConfigError
from vagentrl.formats import WorldModeling
from vagentrl.judging import Contradiction, CopiedPrompt, Length, Repetition, Unchanged
from vagentrl.judging.claim_filters import ClaimFilter
from vagentrl.types import Claim, Representation
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.sokoban import Sokoban

RULES = (Length(), Repetition(), CopiedPrompt(), Contradiction(), Unchanged())


def problem(rule: ClaimFilter, text: str, *others: Claim, prompt: str = "", **truth: Any):
    made = claim(text, **truth)
    return rule.problem(made, (*others, made), prompt)


def test_a_claim_is_as_long_as_the_truth_calls_for():
    rule = Length(shortest=3, longest=2.0)
    assert problem(rule, "ab", truth="abcde") == "2 characters, at least 3 are wanted"
    assert problem(rule, "a" * 10, truth="abcde") is None
    assert problem(rule, "a" * 11, truth="abcde") == "11 characters, at most 10 are allowed"
    assert problem(rule, "abcdef", truth="") is None  # the truth counts as the shortest claim


def test_a_clause_is_not_said_again_and_again():
    rule = Repetition(most=1)
    said = "the box is left"
    assert problem(rule, f"{said}; {said}") is None
    assert problem(rule, f"{said}; The  box is left. {said}") == "says 3 times 'the box is left'"
    holes = "a hole is near; a hole is near; a hole is near"
    assert problem(rule, holes, truth=holes) is None
    assert problem(rule, "##\n##\n##", truth="##", representation="symbolic") is None


def test_a_claim_is_not_copied_from_the_instructions():
    rule = CopiedPrompt(words=4)
    told = "Write the state you see now: the player is at row 1, column 1."
    assert problem(rule, "the state you see now", prompt=told)
    assert problem(rule, "The STATE you", prompt=told)  # shorter, but all of it
    assert problem(rule, "I think: write the state you ...", prompt=told)
    assert problem(rule, "the player is at home", prompt=told)  # four words in a row
    assert problem(rule, "the player sits at row 1", prompt=told) is None
    # a copy that happens to be true is none
    true = "the player is at row 1, column 1"
    assert problem(rule, true, prompt=told, truth=true) is None
    assert problem(rule, "", prompt=told) is None


def test_one_thing_is_not_in_two_places():
    rule, truth = Contradiction(), "the player is at row 1; a hole is at row 2; a hole is at row 3"
    two = "the player is at row 1; the player is at row 2"
    assert problem(rule, two, truth=truth) == "says of 'the player' that it is in 2 places"
    assert problem(rule, "a hole is at row 2; a hole is at row 5", truth=truth) is None
    assert problem(rule, "the player is at row 1; the player is at row 1", truth=truth) is None
    assert problem(rule, "the box is at row 1; the box is at row 2", truth=truth)
    assert problem(rule, "the player is happy; the player is at row 1", truth=truth) is None


def test_one_field_is_not_named_twice():
    twice = '{"player":[1,1],"boxes":[],"player":[2,2]}'
    said = problem(Contradiction(), twice, representation="structured")
    assert said == "names 'player' twice"
    assert problem(Contradiction(), "{broken", representation="structured") is None
    assert problem(Contradiction(), twice, representation="symbolic") is None


def test_a_prediction_is_not_the_observation_unless_nothing_changed():
    seen = claim("All is  well", truth="a")
    same = "the prediction is the observation, but the state changed"
    assert problem(Unchanged(), "all is well", seen, truth="b", kind="prediction") == same
    assert problem(Unchanged(), "all is well", seen, truth="a", kind="prediction") is None
    assert problem(Unchanged(), "all is lost", seen, truth="b", kind="prediction") is None
    assert problem(Unchanged(), "all is well", truth="b") is None  # an observation


@pytest.mark.parametrize("representation", ["natural", "structured", "symbolic"])
@pytest.mark.parametrize("make", [Sokoban, FrozenLake])
def test_the_truth_passes_all_rules(make: Any, representation: Representation):
    env = make(format=WorldModeling(representation), observation="text")
    prompt = env.system_prompt()
    for seed in range(60):
        env.reset(seed)
        state = env.state()
        true = [
            Claim(kind, getattr(state, representation), representation, state)
            for kind in ("observation", "prediction")
        ]
        problems = [rule.problem(each, true, prompt) for each in true for rule in RULES]
        assert not any(problems)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Length(shortest=-1), "Length.shortest is -1"),
        (lambda: Length(longest=0.5), "longest 0.5"),
        (lambda: Repetition(most=-1), "Repetition.most is -1"),
        (lambda: CopiedPrompt(words=1), "CopiedPrompt.words is 1"),
    ],
)
def test_rules_that_would_refuse_everything_are_refused(make: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make()
