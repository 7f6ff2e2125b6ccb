"""Questions and passages: the shipped ones, and files of one's own."""

import gzip
import json
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vagentrl.errors import ConfigError
from vagentrl_envs.search_qa import BM25Retriever, read_questions
from vagentrl_envs.search_qa.environment import DATA
from vagentrl_envs.text_actions import LONGEST_ARGUMENT

SCRIPT = Path(__file__).parents[3] / "scripts/make_search_qa.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = util.spec_from_file_location("make_search_qa", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@pytest.mark.parametrize("name", ["standard", "terse"])
def test_the_script_makes_what_is_shipped_byte_by_byte(script: ModuleType, name: str):
    # Compressed bytes may differ between builds of zlib, so what they stand for is compared.
    for path, content in script.files(name):
        assert gzip.decompress(path.read_bytes()) == content


def test_the_shipped_corpus_is_large_enough():
    assert len(lines(DATA / "standard_corpus.jsonl.gz")) >= 2000
    questions = lines(DATA / "standard_questions.jsonl.gz")
    kinds = [question["type"] for question in questions]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "one-hop": 400, "two-hop": 900, "comparison": 300
    }  # fmt: skip


@pytest.mark.parametrize("name", ["standard", "terse"])
def test_what_held_out_questions_lead_to_is_in_no_training_question(name: str):
    questions = lines(DATA / f"{name}_questions.jsonl.gz")
    names = {passage["title"] for passage in lines(DATA / f"{name}_corpus.jsonl.gz")}
    touched: dict[str, set[str]] = {"train": set(), "validation": set(), "test": set()}
    for each in questions:
        assert {each["answer"], *each["supporting_facts"]} <= names
        asked = f" {each['question'].replace(',', '').rstrip('?')} "
        touched[each["split"]] |= {each["answer"], *each["supporting_facts"]}
        touched[each["split"]] |= {name for name in names if f" {name} " in asked}
    for held_out in ("validation", "test"):
        assert len(touched[held_out]) >= 90
        assert not touched[held_out] & touched["train"]
    assert not touched["validation"] & touched["test"]


@pytest.mark.parametrize("name", ["standard", "terse"])
def test_no_question_holds_its_answer_unless_it_compares(name: str):
    for each in lines(DATA / f"{name}_questions.jsonl.gz"):
        held = each["answer"] in each["question"].split()
        assert not held or each["type"] == "comparison"


def test_the_passages_lead_from_hop_to_hop():
    titles = {p["title"]: p["text"] for p in lines(DATA / "standard_corpus.jsonl.gz")}
    for each in lines(DATA / "standard_questions.jsonl.gz"):
        if each["type"] == "comparison":
            assert each["answer"] in each["supporting_facts"]
            continue
        *earlier, last = each["supporting_facts"]
        assert each["answer"] in titles[last]
        for title in earlier:  # of two hops
            assert title in each["question"] and last in titles[title]


def test_hotpotqa_records_are_read(tmp_path: Path):
    hotpot = {
        "_id": "5a8b57f25542995d1e6f1371",
        "question": "Which of them is older, A or B?",
        "answer": "yes",
        "type": "comparison",
        "level": "hard",
        "supporting_facts": [["A", 0], ["B", 1], ["A", 2]],
        "context": [["A", ["One. ", "Two."]], ["B", ["Three."]]],
    }
    hub = {
        "id": "1",
        "question": "Who?",
        "golden_answers": ["Ann", "Bo"],
        "supporting_facts": {"title": ["C"], "sent_id": [0]},
        "context": {"title": ["C"], "sentences": [["Four.", "Five."]]},
    }
    path = tmp_path / "q.json"
    path.write_text(json.dumps([hotpot, hub]))  # the original is one list
    found = [q for each in read_questions(str(path)).by_split.values() for q in each]
    by_text = {question.text: question for question in found}
    assert by_text["Which of them is older, A or B?"].support == ("A", "B")
    assert by_text["Which of them is older, A or B?"].kind == "comparison"
    assert by_text["Who?"].answers == ("Ann", "Bo") and by_text["Who?"].support == ("C",)
    # the paragraphs of the questions are a corpus
    passages = BM25Retriever(str(path)).passages
    assert [tuple(p) for p in passages] == [
        ("A", "One. Two."), ("B", "Three."), ("C", "Four. Five.")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ({"answer": 5}, ("5",)),
        ({"answers": [1990, "the year 1990"]}, ("1990", "the year 1990")),
        ({"answer": "The The"}, ("The The",)),
        ({"answer": "$"}, ("$",)),
        ({"answer": "x" * 600}, ("x" * LONGEST_ARGUMENT,)),  # no reply can say more
    ],
)
def test_an_answer_may_be_any_text(tmp_path: Path, answers: dict[str, Any], wanted: Any):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"question": "Q", "supporting_facts": None, **answers}))
    [[question]] = read_questions(str(path)).by_split.values()
    assert question.answers == wanted and question.support == ()


def test_questions_without_a_split_are_divided_in_tenths(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    path.write_text(
        "\n".join(json.dumps({"question": f"What is {n}?", "answer": "x"}) for n in range(2000))
    )
    shares = {split: len(each) for split, each in read_questions(str(path)).by_split.items()}
    # four standard deviations of a binomial with p = 0.1 are 54
    assert shares["validation"] == pytest.approx(200, abs=54)
    assert shares["test"] == pytest.approx(200, abs=54)


def test_a_corpus_in_the_format_of_search_r1_is_read(tmp_path: Path):
    path = tmp_path / "c.jsonl.gz"
    line = json.dumps({"id": "0", "contents": '"Kiva"\nKiva is a town.\nIt is old.'})
    path.write_bytes(gzip.compress(f"\ufeff{line}\n\n".encode()))  # with a byte order mark
    (passage,) = BM25Retriever(str(path)).search("town", 3)
    assert passage == ("Kiva", "Kiva is a town. It is old.")


GOOD = '{"question": "Who?", "answer": "Ann"}'


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('{"question": "Who', "line 2 is not JSON: Unterminated string"),
        ("[1, 2]", r"line 2 is \[1, 2\] \(list\); give a JSON object"),
        ('{"answer": "Ann"}', "line 2: there is no 'question'"),
        ('{"question": 7.5, "answer": null}', "line 2: there is no answer"),
        ('{"question": true, "answer": "x"}', r"line 2: 'question' is True \(bool\)"),
        ('{"question": "Q", "answer": [[]]}', r"line 2: 'answer' is \[\[\]\] \(list\)"),
        ('{"question": "Q", "answer": " "}', "line 2: there is no answer, or it is empty"),
        ('{"question": "Q", "answer": "x", "split": "eval"}', "line 2: 'split' is 'eval'"),
        ('{"question": "Q", "answer": "x", "supporting_facts": 3}', "line 2: 'supporting_facts'"),
        ('{"question": "Q", "answer": "x", "supporting_facts": [[1]]}', "is no string"),
    ],
)
def test_a_bad_question_is_named_by_its_line(tmp_path: Path, line: str, wanted: str):
    path = tmp_path / "q.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ConfigError, match=wanted):
        read_questions(str(path))


def test_a_question_in_two_splits_is_refused(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    records = [
        {"question": "Who is it?", "answer": "Ann", "split": "train"},
        {"question": "who is  it", "answer": "Ann", "split": "dev"},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    with pytest.raises(ConfigError, match="line 2: the question is in split 'validation', but"):
        read_questions(str(path))


def test_a_split_without_questions_is_named(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "Who?", "answer": "Ann", "split": "test"}')
    questions = read_questions(str(path))
    assert len(questions.of("test")) == 1
    with pytest.raises(ConfigError, match=r"no question for train \(it has 1 for test\)"):
        questions.of("train")


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "holds no passage"),
        (b'{"title": "A"}', "line 1: the fields are title; give 'title' and 'text'"),
        (b'{"text": ["A"]}', r"line 1: 'text' is \['A'\]"),
        (b'{"context": [["A"]]}', "line 1: 'context' is"),
        (b'{"title": "!", "text": "?"}', "none of the 1 texts"),
        (b"\xff\xfe", "cannot be read as UTF-8"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_bad_corpus_is_named(tmp_path: Path, content: bytes, wanted: str):
    path = tmp_path / "c.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=wanted):
        BM25Retriever(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"gone\.jsonl cannot be read"):
        read_questions(str(tmp_path / "gone.jsonl"))
    (tmp_path / "broken.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match=r"broken\.gz cannot be read"):
        BM25Retriever(str(tmp_path / "broken.gz"))
