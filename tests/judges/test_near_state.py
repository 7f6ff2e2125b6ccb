"""NearState: numbers within a tolerance, everything else exactly."""

import asyncio
import json
from typing import Any

import pytest

from vagentrl.claims.judge import Claim, Verdict
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.types import Representation, State
from vagentrl_judges.near_state import NearState

pytest.importorskip("scipy")

TABLE = {"red cube": [100, -50, 20], "hand": "nothing", "drawer": 80}
NATURAL = "the red cube is at (100, -50, 20); the hand holds nothing"
SHAPES = {
    "target": [
        {"shape": "circle", "color": "red", "x": 30, "y": 40, "width": 20},
        {"shape": "line", "color": "blue", "x": 70, "y": 70, "width": 10},
    ],
    "drawing": [],
}


def judge(
    claimed: Any, truth: Any = TABLE, kind: Representation = "structured", **settings: Any
) -> Verdict:
    said, true = (x if isinstance(x, str) else json.dumps(x) for x in (claimed, truth))
    state = State(natural=true, structured=true, symbolic=true)
    claim = Claim("observation", said, kind, state)
    return asyncio.run(NearState(**{"tolerance": 20, **settings})(claim))


@pytest.mark.parametrize(
    ("position", "score"),
    [
        ([100, -50, 20], 1.0),
        ([120, -30, 0], 1.0),  # 20 off, which is the tolerance
        ([130, -50, 20], 0.5),  # 30 off: half-way from 20 to 40
        ([100, -90, 20], 0.0),  # 40 off
        ([100, -50], 0.0),
        (100, 0.0),
        ("near", 0.0),
        ([100, -50, True], 0.0),
    ],
)
def test_a_position_is_as_right_as_its_farthest_number(position: Any, score: float):
    verdict = judge({**TABLE, "red cube": position})
    assert verdict.score == pytest.approx((score + 2) / 3)


def test_a_field_may_have_a_tolerance_of_its_own():
    said = {**TABLE, "drawer": 70}
    assert judge(said).score == 1
    assert judge(said, tolerances={"drawer": 5}).score == pytest.approx(2 / 3)
    assert judge(said, tolerances={"drawer": 8}).score == pytest.approx((2 + 0.75) / 3)


def test_words_must_be_right_and_fields_complete():
    assert judge({**TABLE, "hand": "red cube"}).score == pytest.approx(2 / 3)
    assert judge({**TABLE, "blue cube": [0, 0, 0]}).score == pytest.approx(3 / 4)
    assert judge({}).score == 0


def shapes(*found: dict[str, Any]) -> dict[str, Any]:
    return {"target": list(found), "drawing": []}


def test_shapes_are_matched_one_to_one_in_any_order():
    circle, line = SHAPES["target"]
    assert judge(shapes(line, circle), SHAPES).score == 1
    # F1 of one right of one said and two true is 2 / 3; the empty drawing is right
    assert judge(shapes(circle), SHAPES).score == pytest.approx((2 / 3 + 1) / 2)
    # the same circle twice is right once
    assert judge(shapes(circle, circle), SHAPES).score == pytest.approx((1 / 2 + 1) / 2)


def test_a_wrong_color_or_shape_costs_the_whole_object_and_a_wrong_number_its_part():
    circle, line = SHAPES["target"]
    for wrong in ({"color": "green"}, {"shape": "ellipse"}, {"more": 1}):
        assert judge(shapes({**circle, **wrong}, line), SHAPES).score == pytest.approx(0.75)
    # x is 60 off: two of three numbers remain, so F1 is (2/3 + 1) / 2
    far = judge(shapes({**circle, "x": 90}, line), SHAPES)
    assert far.score == pytest.approx(((2 / 3 + 1) / 2 + 1) / 2)


def test_clauses_are_compared_but_for_their_numbers():
    assert judge(NATURAL, NATURAL, "natural").score == 1
    nearly = "The hand holds nothing. the red cube is at (110, -50, 20)"
    assert judge(nearly, NATURAL, "natural").score == 1
    half = "the red cube is at (130, -50, 20); the hand holds nothing"
    assert judge(half, NATURAL, "natural").score == pytest.approx(0.75)
    other = "the green cube is at (100, -50, 20); the hand holds nothing"
    assert judge(other, NATURAL, "natural").score == pytest.approx(0.5)
    assert judge("", NATURAL, "natural").score == 0


def test_a_map_is_compared_cell_by_cell():
    assert judge("R_\n__", "R_\n__", "symbolic").score == 1
    assert judge("_R\n__", "R_\n__", "symbolic").score == 0


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[", "{" * 1000, '{"red cube": [NaN, NaN, NaN]}', '{"red cube": [1e999, 0, 0]}',
        '{"red cube": [100, -50, 1' + "0" * 400 + "]}", '{"a": 1, "a": 2}', "[" * 10_000,
    ],
)  # fmt: skip
def test_hostile_claims_earn_nothing(text: str):
    assert judge(text, {"red cube": [100, -50, 20]}).score == 0


def test_many_claims_earn_no_more_than_their_precision():
    circle, _ = SHAPES["target"]
    spread = [{**circle, "x": 10 * k, "y": 10 * j} for k in range(10) for j in range(10)]
    assert judge(shapes(*spread), SHAPES).score < 0.52  # the empty drawing is half of it


def test_a_not_a_number_hides_no_distance():
    assert judge('{"p": [0, NaN]}', {"p": [0, 0]}).score == 0


def test_a_broken_truth_is_an_error_of_the_judge():
    with pytest.raises(JudgeError):
        judge("{}", "{")


def test_settings_and_identity():
    refused: tuple[dict[str, Any], ...] = (
        {"tolerance": 0}, {"tolerance": float("nan")}, {"tolerances": {"x": -1}}
    )  # fmt: skip
    for settings in refused:
        with pytest.raises(ConfigError):
            NearState(**settings)
    assert NearState(5).identity() != NearState(6).identity()
    assert NearState(5, {"x": 1}).identity() != NearState(5).identity()
