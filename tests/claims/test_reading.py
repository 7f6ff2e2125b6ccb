"""The reader: honest paraphrases earn what they should, and what is not asserted earns nothing."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.claims.honest_forms import BOX, PLAYER, TARGET, forms
from tests.judges.models import sokoban
from vagentrl.claims import Contradiction, CopiedPrompt, Length, Repetition
from vagentrl.claims.judge import Judge
from vagentrl.claims.reading import asserted, grid_rows, plain, read_json
from vagentrl.types import Claim, Representation
from vagentrl_judges.exact_state import ExactState
from vagentrl_judges.relation_f1 import RelationF1

SYMBOLS = {"P": ["player"], "X": ["boxes"], "O": ["targets"]}
JUDGES = {"exact": ExactState(), "relations": RelationF1(symbols=SYMBOLS)}
FORMS = list(forms())
ALL = f"{PLAYER} {BOX} {TARGET}"


def score(judge: Judge, text: str, representation: Representation = "natural") -> float:
    claim = Claim("observation", text, representation, sokoban().state())
    return asyncio.run(judge(claim)).score


def test_there_are_200_honest_forms_and_more():
    assert len(FORMS) == len(set(FORMS)) >= 200


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES.keys())
def test_an_honest_claim_earns_the_same_in_every_form(judge: Judge):
    got = [(text, score(judge, text, representation), want) for representation, text, want in FORMS]
    wrong = [each for each in got if each[1] != pytest.approx(each[2])]
    assert not wrong, f"{len(wrong)} of {len(got)}: {wrong[:5]}"


def test_no_filter_rejects_an_honest_form():
    rules = (Length(), Repetition(), CopiedPrompt(), Contradiction())
    prompt = sokoban().system_prompt()
    for representation, text, _ in FORMS:
        claim = Claim("observation", text, representation, sokoban().state())
        assert [rule.problem(claim, (claim,), prompt) for rule in rules] == [None] * 4, text


DENIED = """
It is false that the player is at (2, 3).
It is not true that the player is at (2, 3).
It isn't the case that the player is at (2, 3).
It is a lie that the player is at (2, 3).
It is wrong to say the player is at (2, 3).
False: the player is at (2, 3).
NOT TRUE: the player is at (2, 3).
The player is nowhere near (2, 3).
The player used to be at (2, 3).
The player was at (2, 3).
The player is no longer at (2, 3).
The player isn't at (2, 3).
The player is never at (2, 3).
The player is anywhere but at (2, 3).
The player is far from (2, 3).
The player avoids (2, 3).
The player has left (2, 3).
The player fails to reach (2, 3).
I deny that the player is at (2, 3).
I doubt that the player is at (2, 3).
It is a fairy tale that the player is at (2, 3).
Nobody would say that the player is at (2, 3).
If it rains, the player is at (2, 3).
The player would be at (2, 3) if it could.
The player might be at (2, 3).
Perhaps the player is at (2, 3).
The player is at (2, 3) or (2, 4).
Either the player is at (2, 3) or at (2, 4).
The player is neither at (2, 3) nor elsewhere.
The player \u2260 (2, 3).
The player != (2, 3)
\u274c the player is at (2, 3)
Contrary to fact, the player is at (2, 3).
The opposite holds: the player is at (2, 3).
Suppose the player is at (2, 3).
I wish the player were at (2, 3).
The player is hardly at (2, 3).
Instead of the player at (2, 3) there is a wall.
Le joueur est \u00e0 la ligne 2, colonne 3.
Der Spieler steht in Zeile 2, Spalte 3.
""".strip().splitlines()


@pytest.mark.parametrize("text", DENIED)
def test_what_is_not_asserted_earns_nothing(text: str):
    assert [score(judge, text) for judge in JUDGES.values()] == [0, 0]


@pytest.mark.parametrize(
    "after",
    ["All of this is false.", "That is a lie.", "False!", "None of the above is true.",
     "I am just kidding.", "What I said is wrong."],
)  # fmt: skip
def test_a_claim_that_denies_itself_says_nothing(after: str):
    assert asserted(f"{ALL} {after}") == asserted(f"{after} {ALL}") == ()
    fenced = f"The following is false:\n```\n{sokoban().state().structured}\n```"
    assert score(JUDGES["exact"], fenced, "structured") == 0


def test_ordinals_count_from_0_as_rows_do():
    assert asserted("The box is in the second row, 1st column.") == (
        "the box is in row 1, column 0",
    )
    assert asserted("the first box is here") == ("the first box is here",)


def test_a_text_has_one_spelling():
    assert (
        plain("The\u200b  PL\u0410YER\u2019s \uff22\u1d52x\n\n at\t\u00e9 ")
        == "the player's box\nat e"
    )
    assert grid_rows("```\n  # #\n  # P\n```") == ["##", "#P"]


def test_a_grid_that_is_denied_has_no_rows():
    grid = sokoban().state().symbolic
    for words in ("not {}", "maybe\n{}", "if I am right,\n{}", "it is false that {}",
                  "{}\nAll of this is false.", "nowhere near {}"):  # fmt: skip
        assert grid_rows(words.format(grid)) == []
    assert grid_rows(f"I see:\n{grid}")[1:] == grid_rows(grid)


def test_a_field_that_is_named_twice_in_any_spelling_is_refused():
    for text in ('{"a": 1, "A": 2}', "{'a': 1, 'A ': 2}", '{"box": 1, "boxes": 2}'):
        with pytest.raises(ValueError, match="twice"):
            read_json(text, ("a", "boxes"))


@settings(max_examples=60)
@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str):
    asserted(text)
    grid_rows(text)
    with suppress(ValueError):
        read_json(text, ("player",))


def test_long_texts_are_read_in_linear_time():
    asserted("it is not so that the " * 4000 + "row 1, column 2 " * 4000 + "(" * 4000)
    with pytest.raises(ValueError, match="deeper"):
        read_json("{" + "[" * 50_000)
