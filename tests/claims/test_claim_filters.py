from typing import Any

import pytest

from tests.claims.claims import claim
from vagentrl.claims import Contradiction, CopiedPrompt, Length, Repetition
from vagentrl.claims.claim_filters import ClaimFilter
from vagentrl.errors import ConfigError
from vagentrl.formats import WorldModeling
from vagentrl.types import Claim, Representation
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.sokoban import Sokoban

RULES = (Length(), Repetition(), CopiedPrompt(), Contradiction())


def problem(rule: ClaimFilter, text: str, *others: Claim, prompt: str = "", **truth: Any):
    made = claim(text, **truth)
    return rule.problem(made, (*others, made), prompt)


def test_claims_that_are_too_short_or_too_long_are_rejected():
    rule = Length(shortest=3, longest=2.0)
    assert problem(rule, "ab", truth="abcde") == "2 characters, at least 3 are required"
    assert problem(rule, "a" * 10, truth="abcde") is None
    assert problem(rule, "a" * 11, truth="abcde") == "11 characters, at most 10 are allowed"
    # The truth's length counts as at least `shortest`.
    assert problem(rule, "abcdef", truth="") is None
    assert problem(rule, '{\n    "a": 1\n}', truth='{"a":1}') is None  # indentation does not count


def test_repeated_clauses_are_rejected_unless_the_truth_repeats_them():
    rule = Repetition(most=1)
    said = "the box is left"
    assert problem(rule, f"{said}; {said}") is None
    assert problem(rule, f"{said}; The  box is left. {said}") == "says 'the box is left' 3 times"
    holes = "a hole is near; a hole is near; a hole is near"
    assert problem(rule, holes, truth=holes) is None
    assert problem(rule, "##\n##\n##", truth="##", representation="symbolic") is None


def test_text_copied_from_the_system_prompt_is_rejected():
    rule = CopiedPrompt(words=4)
    told = "Write the state you see now: the player is at row 1, column 1."
    assert problem(rule, "the state you see now", prompt=told)
    assert problem(rule, "The STATE you", prompt=told)  # short, but completely copied
    assert problem(rule, "I think: write the state you ...", prompt=told)
    assert problem(rule, "the player is at home", prompt=told)  # four words in a row
    assert problem(rule, "the player sits at row 1", prompt=told) is None
    # text that is also in the truth is not a copy
    true = "the player is at row 1, column 1"
    assert problem(rule, true, prompt=told, truth=true) is None
    assert problem(rule, "", prompt=told) is None


SOKOBAN = (
    "the player is at row 2, column 3; box 1 is 1 to the left of the player; "
    "box 2 is 3 below the player; the target is 1 below and 2 to the left of the player"
)
LAKE = (
    "the player is at row 0, column 0; a hole is at row 1, column 1; a hole is at row 2, column 3"
)


@pytest.mark.parametrize(
    ("text", "truth", "what"),
    [
        ("the player is at row 1; the player is at row 2", LAKE, "player"),
        ("There is a player at (0, 0). There is a player at (0, 1).", LAKE, "player"),
        ("a hole is at (1, 1); a hole is at (2, 3); a hole is at (3, 3)", LAKE, "hole"),
        ("box 1 is at (2, 2); box 1 is at row 5, column 3", SOKOBAN, "box 1"),
        ("a box is at (2, 2); the box is at (5, 3); box 1 is at (4, 4)", SOKOBAN, "box"),
        ("the target is 2 to the left of the player; the target is 1 to the left of the player",
         SOKOBAN, "target"),
        ("a cat is 1 above the player; the cat is 1 below the player", SOKOBAN, "cat"),
    ],
)  # fmt: skip
def test_an_object_in_two_places_is_a_contradiction(text: str, truth: str, what: str):
    places = 3 if what in ("hole", "box") else 2
    said = f"puts {what!r} in {places} places"
    assert problem(Contradiction(), text, truth=truth) == said


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("the player is at (0, 0); the player is at row 0, column 0", LAKE),
        ("There is a hole at row 1, column 1. There is a hole at row 2, column 3.", LAKE),
        ("The hole is at (1, 1). The hole is at (2, 3).", LAKE),
        ("A hole is at (1, 1). Another is at (2, 3). It is at the edge.", LAKE),
        ("the player is happy; the player is at row 0; the player is at column 0", LAKE),
        ("the player is not at (3, 3). the player is at (0, 0).", LAKE),
        ("A box is at row 2, column 2; a box is at row 5, column 3", SOKOBAN),
        ("Box 1 is at (2, 2). Box 1 is 1 to the left of the player. Box 2 is at (5, 3).", SOKOBAN),
        ("the target is 1 below the player; the target is 2 to the left of the player", SOKOBAN),
        ("the player is at (2, 3), the target is at (3, 1); the player is at (2, 3)", SOKOBAN),
    ],
)
def test_a_true_claim_in_other_words_is_not_a_contradiction(text: str, truth: str):
    assert problem(Contradiction(), text, truth=truth) is None


def test_a_duplicate_field_is_a_contradiction():
    twice = '{"player":[1,1],"boxes":[],"player":[2,2]}'
    said = problem(Contradiction(), twice, representation="structured")
    assert said == "'player' is named twice"
    assert problem(Contradiction(), "{broken", representation="structured") is None
    assert problem(Contradiction(), twice, representation="symbolic") is None


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
        (lambda: Length(longest=0.5), "longest is 0.5"),
        (lambda: Repetition(most=-1), "Repetition.most is -1"),
        (lambda: CopiedPrompt(words=1), "CopiedPrompt.words is 1"),
    ],
)
def test_settings_that_would_reject_every_claim_are_refused(make: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make()
