"""The reward by hand."""

from dataclasses import replace
from typing import Any

import pytest

from vagentrl_envs.webshop import Goal, Product, score
from vagentrl_envs.webshop.reward import alike, has_attribute, type_match

BOOTS = Product(
    asin="W1",
    name="Alvina K10 waterproof tall rain boots",
    query="rain boots",
    path=("Clothing", "Shoes", "Rain Boots"),
    description="They keep you dry.",
    features=("Rubber soled.",),
    attributes=("waterproof", "wide fit"),
    options=(("color", ("red", "navy blue")), ("size", ("38", "39"))),
    prices=(40.0,),
)
GOAL = Goal(BOOTS, ("waterproof", "wide fit"), (("color", "navy blue"), ("size", "38")), 50, "")


@pytest.mark.parametrize(
    ("changes", "chosen", "total"),
    [
        ({}, ["navy blue", "38"], 1.0),
        ({}, ["navy blue", "39"], 4 / 5),  # 2 attributes + 1 option + 1 price, of 5
        ({}, [], 3 / 5),
        ({"prices": (50.01,)}, ["38", "navy blue"], 4 / 5),
        ({"prices": (50.0,)}, ["38", "navy blue"], 1.0),
        ({"prices": (30.0, 80.0)}, ["38", "navy blue"], 4 / 5),  # the middle is 55
        ({"attributes": ("waterproof",)}, ["38", "navy blue"], 4 / 5),
    ],
)
def test_a_reward_is_the_share_of_what_was_wanted(
    changes: dict[str, Any], chosen: list[str], total: float
):
    assert score(GOAL, replace(BOOTS, **changes), chosen).total == pytest.approx(total)


def test_another_type_scales_the_reward():
    lamp = replace(BOOTS, name="Desk lamp", query="desk lamp", path=("Home", "Living"))
    found = score(GOAL, lamp, ["38", "navy blue"])
    assert (found.type, found.total, found.attributes) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("name", "query", "path", "wanted"),
    [
        # of alvina, k10, tall, rain, boots; waterproof and wide are attributes
        ("Solvey Z99 rain hat", "hat", ("Clothing", "Hats"), 0.5),  # 1 of 5 is 0.2: not above it
        ("Solvey Z99 waterproof wide rain hat", "hat", ("Clothing", "Hats"), 0.5),
        ("Solvey Z99 rain boots", "x", ("Y",), 1.0),  # 2 of 5
        ("Solvey Z99 rain hat", "rain boots", ("Y",), 1.0),  # 1 of 5, but the same query
        ("Solvey Z99 rain hat", "x", ("Clothing", "Shoes"), 1.0),  # or two levels
        ("Solvey Z99 hat", "rain boots", ("Clothing", "Shoes"), 0.0),  # no word of the title
    ],
)
def test_the_type_is_told_by_title_query_and_category(
    name: str, query: str, path: tuple[str, ...], wanted: float
):
    assert type_match(BOOTS, replace(BOOTS, name=name, query=query, path=path)) == wanted


def test_a_title_without_a_word_that_counts_is_told_by_query_and_category():
    named = replace(BOOTS, name="of it: waterproof")
    assert type_match(named, named) == 1.0
    assert type_match(named, replace(named, query="x", path=())) == 0.5


def test_a_long_title_with_one_word_in_common_is_a_tenth():
    long = replace(BOOTS, name="one two three four five six seven eight nine ten boots")
    # boots is 1 of 11 words: below 0.1
    assert type_match(long, replace(BOOTS, name="boots", query="", path=())) == 0.1


def test_an_attribute_may_stand_in_the_texts():
    plain = replace(BOOTS, attributes=())
    assert has_attribute(plain, "waterproof")  # in the title
    assert has_attribute(plain, "rubber soled")  # in a feature
    assert has_attribute(plain, "keep you dry")  # in the description
    assert not has_attribute(plain, "vegan")


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ("navy blue", "Blue, navy", True),
        ("navy", "navy blue", True),  # all words of the shorter one
        ("x-large", "large", True),  # so too, as with the original's token sets
        ("machine washable", "machine wash", True),  # 24 of 28 letters agree: 0.857
        ("red", "blue", False),
        ("38", "39", False),
        ("", "red", False),
        ("!", "!", True),
        ("+", "++", False),
    ],
)
def test_phrases_are_alike_in_their_words(one: str, other: str, wanted: bool):
    assert alike(one, other) == wanted == alike(other, one)
