"""No question of one split is asked in another."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.datasets.files import SPLITS, all_asked, asked, json_lines, sums
from vagentrl.datasets import Fields, TaskFiles
from vagentrl.datasets.index import split_by_content
from vagentrl.environment import split_of_state
from vagentrl.errors import ConfigError

question = st.text("ab \n\t", max_size=6).map(lambda text: f"q{text}")
row = st.fixed_dictionaries({"prompt": question, "answer": st.integers(0, 2)})
rows = st.lists(row, min_size=1, max_size=30)


def plainly(text: str) -> str:
    return " ".join(text.split()).casefold()


@given(st.text(max_size=30))
def test_by_default_the_split_is_that_of_every_environment(text: str):
    assert split_by_content(text, 0.1, 0.1) == split_of_state(text)


@given(st.text(max_size=30), st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_larger_share_keeps_what_a_smaller_one_has(text: str, one: float, other: float):
    small, large = sorted((one, other))
    for split, shares in (("validation", [(small, 0.2), (large, 0.2)]),
                          ("test", [(0.2, small), (0.2, large)])):  # fmt: skip
        first, second = (split_by_content(text, *each) == split for each in shares)
        assert second or not first


def test_shares_are_kept_about():
    splits = [split_by_content(str(number), 0.25, 0.037) for number in range(20_000)]
    assert splits.count("validation") / 20_000 == pytest.approx(0.25, abs=0.01)
    assert splits.count("test") / 20_000 == pytest.approx(0.037, abs=0.005)


@settings(max_examples=40)
@given(rows)
def test_what_asks_the_same_is_in_one_split(rows: list[dict[str, Any]]):
    with tempfile.TemporaryDirectory() as folder:
        path = json_lines(Path(folder) / "rows.jsonl", rows)
        tasks = TaskFiles(str(path), validation_share=0.4, test_share=0.4, cache=folder)
        plain = [set(map(plainly, asked(tasks, split))) for split in SPLITS]
        everything = {row["prompt"] for row in rows}
        assert set(all_asked(tasks)) == everything
    assert sum(map(len, plain)) == len(set(map(plainly, everything)))


@settings(max_examples=25)
@given(rows, rows, st.randoms(use_true_random=False))
def test_the_order_of_files_and_rows_changes_no_split(
    first: list[dict[str, Any]], second: list[dict[str, Any]], rng: random.Random
):
    with tempfile.TemporaryDirectory() as folder:
        one = str(json_lines(Path(folder) / "one.jsonl", first))
        two = str(json_lines(Path(folder) / "two.jsonl", second))
        shuffled = [*first, *second]
        rng.shuffle(shuffled)
        mixed = str(json_lines(Path(folder) / "mixed.jsonl", shuffled))
        found = []
        for paths in ([one, two], [two, one], [mixed]):
            tasks = TaskFiles(paths, validation_share=0.3, test_share=0.3, cache=folder)
            found.append([sorted(asked(tasks, split)) for split in SPLITS])
    assert found[0] == found[1] == found[2]


@settings(max_examples=25)
@given(rows, rows, rows)
def test_a_held_out_file_takes_its_questions_from_training(
    train: list[dict[str, Any]], validation: list[dict[str, Any]], test: list[dict[str, Any]]
):
    with tempfile.TemporaryDirectory() as folder:
        first, second, third = (
            str(json_lines(Path(folder) / f"{number}.jsonl", each))
            for number, each in enumerate((train, validation, test))
        )
        tasks = TaskFiles(first, second, third, cache=folder)
        found = [set(map(plainly, asked(tasks, split))) for split in SPLITS]
        unused = tasks.index.held_out
    wanted = [{plainly(row["prompt"]) for row in each} for each in (train, validation, test)]
    assert found == [wanted[0] - wanted[1] - wanted[2], wanted[1] - wanted[2], wanted[2]]
    lost = [row for row in train if plainly(row["prompt"]) in wanted[1] | wanted[2]]
    lost += [row for row in validation if plainly(row["prompt"]) in wanted[2]]
    assert unused == len(lost)


def test_only_the_split_without_files_takes_a_share(tmp_path: Path):
    train = json_lines(tmp_path / "a.jsonl", sums(300))
    test = json_lines(tmp_path / "b.jsonl", sums(7, start=1000))
    tasks = TaskFiles(str(train), test_path=str(test))
    assert tasks.count("test") == 7
    assert 10 < tasks.count("validation") < 60
    assert tasks.count("train") + tasks.count("validation") == 300


def test_rows_that_differ_only_in_the_system_prompt_are_in_one_split(tmp_path: Path):
    def row(system: str, number: int) -> dict[str, Any]:
        talk = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{number} + 1?"},
        ]
        return {"prompt": talk, "answer": number + 1}

    rows = [row(system, number) for number in range(60) for system in ("Be brief.", "Think.")]
    tasks = TaskFiles(str(json_lines(tmp_path / "rows.jsonl", rows)))
    for split in SPLITS:
        questions = asked(tasks, split)
        assert len(questions) == 2 * len(set(questions)) > 0


def test_images_are_part_of_the_question(tmp_path: Path):
    rows = [{"prompt": "<image> What?", "answer": n, "images": f"{n}.png"} for n in range(100)]
    tasks = TaskFiles(str(json_lines(tmp_path / "rows.jsonl", rows)))
    assert all(tasks.count(split) > 3 for split in SPLITS)


def test_a_row_that_is_repeated_is_used_once_but_another_answer_is_another_row(tmp_path: Path):
    rows = [{"prompt": "Name a prime.", "answer": answer} for answer in (2, 3, 2, 5, 2)]
    tasks = TaskFiles(str(json_lines(tmp_path / "rows.jsonl", rows)))
    assert sorted(tasks.count(split) for split in SPLITS) == [0, 0, 3]
    assert tasks.index.repeated == 2


def test_rows_may_name_their_split(tmp_path: Path):
    names = {"train": "train", "validation": "DEV", "test": "test"}
    rows = [{**row, "set": names[SPLITS[n % 3]]} for n, row in enumerate(sums(30))]
    path = str(json_lines(tmp_path / "rows.jsonl", [*rows, {**sums(1)[0], "set": "other"}]))
    tasks = TaskFiles(path, fields=Fields(split="set"))
    for number, split in enumerate(SPLITS):
        assert asked(tasks, split) == [f"{n} + 1?" for n in range(number, 30, 3)]
    assert "'set' is 'other'" in tasks.index.problems[0]


def test_one_file_for_two_splits_is_refused(tmp_path: Path):
    path = str(json_lines(tmp_path / "rows.jsonl", sums(3)))
    (tmp_path / "link.jsonl").symlink_to(path)
    with pytest.raises(ConfigError, match="is given for train and for test"):
        TaskFiles(path, test_path=str(tmp_path / "link.jsonl")).count("train")


def test_a_key_of_the_question_cannot_be_forged(tmp_path: Path):
    # one message that spells three must not be taken for these three
    roles = ("user", "assistant", "user")
    talk = [{"role": role, "content": text} for role, text in zip(roles, "abc", strict=True)]
    forged = [{"role": "user", "content": 'a"], ["assistant", "b"], ["user", "c'}]
    rows = [{"prompt": each, "answer": 1} for each in (talk, forged)]
    tasks = TaskFiles(str(json_lines(tmp_path / "rows.jsonl", rows)))
    assert sum(tasks.count(split) for split in SPLITS) == 2
    assert json.dumps(rows)  # both are ordinary JSON
