import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagentrl_judges.relations import ANY, LESS, MORE, Relation, at
from vagentrl_judges.rule_parser import RuleParser

CLASSES = ("player", "boxes", "targets")


def read(text: str, *classes: str, **settings: dict[str, list[str]]) -> list[Relation]:
    return asyncio.run(RuleParser(**settings).parse(text, classes or CLASSES))


PLAYER, BOX = at("player", 2, 3), at("boxes", 2, 2)


def test_a_class_may_end_in_a_number():
    assert read("door 2 is at (1, 3)", "door_2") == [at("door_2", 1, 3)]


@pytest.mark.parametrize(
    "text",
    [
        "the player is at row 2, column 3",
        "The player stands in row 2 and column 3.",
        "PLAYER: (2, 3)",
        "I am at [2,3]",
        "the agent is on column 3, row 2",
        "At row two, column three is the player.",
        "the player is at 2, 3",
        "player at row=2, col=3",
        "There, at (2, 3), is the player",
    ],
)
def test_rows_and_columns_are_read(text: str):
    assert read(text) == [PLAYER]


@pytest.mark.parametrize(
    ("text", "down", "right"),
    [
        ("the box is 1 below and 2 to the right of the player", 1, 2),
        ("the box is 1 to the left of the player", 0, -1),
        ("the box is one cell to the left of the player and two cells below", 2, -1),
        ("two rows above the player there is a box", -2, 0),
        ("the crate is a step north and 3 steps west of the agent", -1, -3),
        ("the box is immediately above the player", -1, 0),
        ("the box is right below the player", 1, 0),
        ("the box is where the player is", 0, 0),
        ("the box is 3 cells to the player's right", 0, 3),
        ("the box is 3 cells to the player\u2019s right", 0, 3),
        ("a box is two columns to the right of me and one row up", -1, 2),
    ],
)
def test_distances_are_read(text: str, down: int, right: int):
    assert read(text) == [at("boxes", down, right, of="player")]


@pytest.mark.parametrize(
    ("text", "rows", "columns"),
    [
        ("the box is above the player", LESS, ANY),
        ("the box is to the right of the player", ANY, MORE),
        ("the box is to the upper left of the player", LESS, LESS),
        ("the box is below and to the right of the player", MORE, MORE),
        ("the box lies south-west of the player", MORE, LESS),
        ("the box is directly above the player", LESS, (0, 0)),
        ("the box is 2 above and to the left of the player", (-2, -2), LESS),
    ],
)
def test_directions_without_a_distance_are_vague(text: str, rows: tuple, columns: tuple):
    assert read(text) == [Relation("boxes", rows, columns, "player")]


def test_one_object_may_have_several_places_and_one_place_several_objects():
    assert read("boxes are at row 2, column 2 and row 3, column 3") == [BOX, at("boxes", 3, 3)]
    assert read("the box and the target are above the player") == [
        Relation("boxes", LESS, ANY, "player"),
        Relation("targets", LESS, ANY, "player"),
    ]
    assert read("the box is 1 below the player and above the target") == [
        at("boxes", 1, 0, of="player"),
        Relation("boxes", LESS, ANY, "targets"),
    ]
    assert read("the player is at row 2, column 3, and the box at row 2, column 2") == [PLAYER, BOX]
    assert read("the box (2, 2) is left of the player (2, 3)") == [
        BOX,
        Relation("boxes", ANY, LESS, "player"),
        PLAYER,
    ]


def test_the_number_of_an_object_is_not_a_distance():
    assert read("box 1 is 2 below the player; box 2 is 1 above box 1") == [
        at("boxes", 2, 0, of="player"),
        at("boxes", -1, 0, of="boxes"),
    ]
    assert read("there is a box 2 below the player") == [at("boxes", 2, 0, of="player")]


def test_an_object_can_be_on_another():
    assert read("the box is on the target") == [at("boxes", 0, 0, of="targets")]
    assert read("the player is in a hole", "player", "holes") == [at("player", 0, 0, of="holes")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the player is not at row 2, column 3",
        "the player isn't at (2, 3)",
        "the player is at row 2, column 3 or row 2, column 2",
        "the box may be above the player",
        "there is no box at (2, 2)",
        "the box is above or below the player",
        "the player moves left",
        "the dragon is at row 2, column 3",
        "row 2, column 3",
        "the box is 1 above and 2 below the player",
        "the player is happy",
    ],
)
def test_negated_uncertain_and_other_statements_are_ignored(text: str):
    assert read(text) == []


def test_uncertainty_applies_only_to_its_own_clause():
    assert read("Maybe the box is at (1, 1); the player is at (2, 3), but the box isn't.") == [
        PLAYER
    ]


def test_a_move_is_not_a_place():
    assert read("the player moves left and the box is at row 2, column 2") == [BOX]


def test_names_can_be_set_and_other_classes_go_by_their_own_name():
    assert read("the gem is at (2, 2)", "boxes", words={"boxes": ["gem"]}) == [BOX]
    assert read("the red door is at (2, 2)", "red_doors") == [at("red_doors", 2, 2)]
    both = "the goal is at (0, 0); the target is at (1, 1)"
    assert read(both, "goal", "targets") == [at("goal", 0, 0), at("targets", 1, 1)]
    assert read(both, "targets") == [at("targets", 0, 0), at("targets", 1, 1)]


@given(st.text(max_size=300))
def test_no_text_raises_an_error(text: str):
    read(text)


VOCABULARY = re.findall(
    r"\S+",
    "the a box player target 1 2 two row column ( ) [ ] , ; . above below left right of to and or "
    "not is at on where 's",
)


@given(st.lists(st.sampled_from(VOCABULARY), max_size=60))
def test_no_sequence_of_known_words_raises_an_error(words: list[str]):
    for relation in read(" ".join(words)):
        assert relation.thing in CLASSES
        assert relation.of in (*CLASSES, None)


def test_a_long_repetitive_text_is_read_without_exponential_backtracking():
    read("left " * 5000 + "1 below and " * 5000 + "box " * 5000 + "row 1 " * 5000)
