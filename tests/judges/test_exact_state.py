import asyncio
import json

import pytest

from vagentrl.claims.judge import Verdict
from vagentrl.claims.reading import MAX_DEPTH
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.types import Claim, Representation, State
from vagentrl_judges.exact_state import ExactState

SOKOBAN = State(
    natural="the player is at row 1, column 2; the box is 2 below the player; "
    "the target is 2 below and 1 to the right of the player",
    structured='{"player":[1,2],"boxes":[[3,2],[3,3]],"targets":[[3,3],[2,2]]}',
    symbolic="######\n#_P__#\n#____#\n#_XO_#\n#____#\n######",
)
LAKE = State(
    natural="the player is at row 0, column 0; the goal is at row 1, column 1; "
    "a hole is at row 0, column 1",
    structured='{"player":[0,0],"goal":[1,1],"holes":[]}',
    symbolic="PO\n_G",
)


def judge(text: str, representation: Representation, state: State = SOKOBAN) -> Verdict:
    claim = Claim("observation", text, representation, state)
    return asyncio.run(ExactState().judge(claim))


@pytest.mark.parametrize("state", [SOKOBAN, LAKE])
@pytest.mark.parametrize("representation", ["natural", "structured", "symbolic"])
def test_the_truth_scores_1(representation: Representation, state: State):
    assert judge(getattr(state, representation), representation, state) == Verdict(1.0)


@pytest.mark.parametrize(
    ("claim", "score"),
    [
        # other white space and another order
        ('{ "targets": [[2,2],[3,3]], "boxes": [[3,3],[3.0,2]], "player": [1, 2] }', 1),
        # one of three fields is wrong
        ('{"player":[2,1],"boxes":[[3,2],[3,3]],"targets":[[3,3],[2,2]]}', 2 / 3),
        # a position is right or wrong as a whole
        ('{"player":[1,3],"boxes":[[3,2],[3,3]],"targets":[[3,3],[2,2]]}', 2 / 3),
        # one of two boxes: F1 = 2*1/(2+2)
        ('{"player":[1,2],"boxes":[[3,2],[4,4]],"targets":[[3,3],[2,2]]}', 2.5 / 3),
        # one box too many costs a right one: 2*(2-1)/(3+2)
        ('{"player":[1,2],"boxes":[[3,2],[3,3],[4,4]],"targets":[[3,3],[2,2]]}', 2.4 / 3),
        # one box said twice is one right box: F1 = 2*1/(2+2)
        ('{"player":[1,2],"boxes":[[3,2],[3,2]],"targets":[[3,3],[2,2]]}', 2.5 / 3),
        # nothing but the player
        ('{"player":[1,2]}', 1 / 3),
        # a field that the truth does not have
        ('{"player":[1,2],"boxes":[[3,2],[3,3]],"targets":[[3,3],[2,2]],"door":[0,0]}', 3 / 4),
        # the wrong kinds of values
        ('{"player":"[1,2]","boxes":2,"targets":null}', 0),
        ("[1,2]", 0),
        ("{}", 0),
    ],
)
def test_structured_claims_are_compared_field_by_field(claim: str, score: float):
    assert judge(claim, "structured").score == pytest.approx(score)


def test_a_list_may_be_empty():
    assert judge('{"player":[0,0],"goal":[1,1],"holes":[]}', "structured", LAKE).score == 1
    said = judge('{"player":[0,0],"goal":[1,1],"holes":[[0,1]]}', "structured", LAKE)
    assert said.score == pytest.approx(2 / 3)


def test_true_is_not_one():
    state = State("", '{"open": 1}', "")
    assert judge('{"open": true}', "structured", state).score == 0


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ("the player is at [1,2]", "not JSON: Expecting value"),
        ('{"player":[1,2]', "not JSON"),
        ('{"player":[1,2],"player":[1,3]}', "'player' is named twice"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5000, "not JSON"),
    ],
)
def test_a_claim_that_is_not_valid_json_scores_0_and_the_reason_says_why(claim: str, reason: str):
    verdict = judge(claim, "structured")
    assert verdict.score == 0
    assert reason in verdict.reason


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def deeper(frames: int, claim: str) -> Verdict:
    """Judge with this much of the interpreter's stack in use."""
    return deeper(frames - 1, claim) if frames else judge(claim, "structured")


@pytest.mark.parametrize("frames", [0, 300, 600])
def test_how_deep_a_claim_may_be_nested_does_not_depend_on_the_stack(frames: int):
    too_deep = deeper(frames, nested(MAX_DEPTH + 1))
    assert too_deep == Verdict(0.0, "not JSON: brackets are nested deeper than 32")
    assert deeper(frames, nested(100_000)).reason == too_deep.reason
    assert deeper(frames, '{"player":' + nested(MAX_DEPTH) + "}").reason == too_deep.reason
    read = deeper(frames, nested(MAX_DEPTH))
    assert read.score == 0 and "not JSON" not in read.reason


def test_brackets_in_strings_do_not_nest():
    state = State("", json.dumps({"sign": nested(50), "quoted": '"[' * 50}), "")
    assert judge(state.structured, "structured", state) == Verdict(1.0)


def test_a_wrong_field_is_named():
    claim = '{"player":[1,3],"boxes":[[3,2],[3,3]],"targets":[[3,3],[2,2]]}'
    assert judge(claim, "structured").reason == "player is [1, 2], not [1, 3]"


def test_an_environment_whose_state_is_not_json_fails_the_judge():
    with pytest.raises(JudgeError, match="structured state is not JSON"):
        judge("{}", "structured", State("", "player 1 2", ""))


@pytest.mark.parametrize(
    ("claim", "score"),
    [
        # white space around rows and between cells does not count
        ("  ######\n\n# _ P _ _ #\n#____#\n#_XO_#\n#____#\n######\n", 1),
        # The player is one cell off. Four cells count: both player cells, box and target; 2 right.
        ("######\n#__P_#\n#____#\n#_XO_#\n#____#\n######", 2 / 4),
        # only walls and floor: three cells count, none is right
        ("######\n#____#\n#____#\n#____#\n#____#\n######", 0),
        # a wall where there is floor counts too: 3 of 4
        ("######\n#_P__#\n##___#\n#_XO_#\n#____#\n######", 3 / 4),
        # another shape
        ("######\n#_P__#\n#____#\n#_XO_#\n######", 0),
        ("#####\n#_P_#\n#___#\n#_XO#\n#___#\n#####", 0),
        ("", 0),
    ],
)
def test_symbolic_claims_are_compared_cell_by_cell_except_for_shared_background(
    claim: str, score: float
):
    assert judge(claim, "symbolic").score == pytest.approx(score)


@pytest.mark.parametrize(
    ("claim", "score"),
    [
        # any order, any case, a full stop
        (
            "The target is 2 below and 1 to the right of the player; the player is at row 1, "
            "column 2; the box is 2  below the player.",
            1,
        ),
        # two classes of three are right
        (
            "the player is at row 1, column 3; the box is 2 below the player; "
            "the target is 2 below and 1 to the right of the player",
            2 / 3,
        ),
        # one class of three
        ("the box is 2 below the player", 1 / 3),
        # listing all possibilities earns nothing: 2*(1-4)/(5+1) is below 0
        ("; ".join(f"the box is {n} below the player" for n in range(1, 6)), 0),
        # other words
        ("I am in the second row, third column; the crate is at (3, 2); the goal at (3, 3)", 1),
        ("all is well", 0),
        (";;", 0),
    ],
)
def test_natural_claims_are_compared_by_the_positions_they_give(claim: str, score: float):
    positions = '{"player":[1,2],"boxes":[[3,2]],"targets":[[3,3]]}'
    state = State(SOKOBAN.natural, positions, SOKOBAN.symbolic)
    assert judge(claim, "natural", state).score == pytest.approx(score)
    # the clauses themselves, where the state has no positions
    worded = judge(SOKOBAN.natural, "natural", State(SOKOBAN.natural, "{}", ""))
    assert worded.score == 1


def test_identical_clauses_are_counted_as_a_multiset():
    state = State("a hole is here; a hole is here; the goal is there", "", "")
    # 2 right of 2 said, of 3: F1 = 2*2/(2+3)
    assert judge("a hole is here; the goal is there", "natural", state).score == pytest.approx(0.8)


def test_the_background_is_part_of_the_judges_identity():
    assert ExactState("#_").identity() != ExactState("#.").identity()
    with pytest.raises(ConfigError, match="white space is never compared"):
        ExactState("# ")


def test_the_reason_of_a_structured_verdict_lists_the_wrong_fields():
    verdict = judge(json.dumps({"player": [1, 2], "boxes": [[9, 9]], "targets": []}), "structured")
    assert verdict.reason == "boxes: 1 said, 0 right of 2; targets: 0 said, 0 right of 2"
