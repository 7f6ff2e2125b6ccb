import pytest

from vagentrl_envs.search_qa import exact_match, f1, normalised


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("The  Salt Door!", "salt door"),
        ("an apple a day", "apple day"),
        ("Theo, Anna", "theo anna"),  # articles are whole words
        ("U.S.", "us"),
        ("the", ""),
    ],
)
def test_answers_are_normalised_as_in_squad(answer: str, wanted: str):
    assert normalised(answer) == wanted


def test_one_of_the_references_is_enough():
    assert exact_match("the Salt door", ["x", "Salt Door"]) == 1
    assert exact_match("Salt", ["x", "Salt Door"]) == 0
    assert exact_match("x", []) == f1("x", []) == 0


@pytest.mark.parametrize(
    ("answer", "references", "score"),
    [
        # 2 shared words of 3 said and 2 wanted: precision 2/3, recall 1
        ("old salt door", ["Salt Door"], 0.8),
        ("salt salt", ["salt door"], 0.5),  # the second "salt" is not shared
        ("door", ["x y", "a door"], 1.0),  # the best reference counts
        ("yes it is", ["yes"], 0.0),
        ("yes", ["Yes."], 1.0),
        ("the", ["a"], 1.0),  # both are empty, as in SQuAD 2
        ("the", ["salt"], 0.0),
    ],
)
def test_f1_counts_shared_words(answer: str, references: list[str], score: float):
    assert f1(answer, references) == pytest.approx(score)
