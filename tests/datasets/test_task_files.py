"""Rows of every kind of file become tasks."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from tests.datasets.files import all_asked, asked, json_lines, parquet, saved, sums, tasks_of
from vagentrl.datasets import Fields, TaskFiles
from vagentrl.errors import ConfigError
from vagentrl.interactions import Tasks


def write(kind: str, folder: Path, rows: list[dict[str, Any]]) -> Path:
    if kind == "saved":
        pytest.importorskip("pyarrow")
        return saved(folder / "saved", rows)
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        return parquet(folder / "rows.parquet", rows, row_group_size=7)
    return json_lines(folder / f"rows.{kind}", rows)


KINDS = ("jsonl", "jsonl.gz", "parquet", "saved")


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_every_kind_of_file_is_one_task(kind: str, tmp_path: Path):
    tasks = TaskFiles(str(write(kind, tmp_path, sums(40))))
    found = [
        (task.messages, dict(task.interaction), task.images)
        for split in ("train", "validation", "test")
        for task in tasks_of(tasks, split)
    ]
    wanted = [
        (({"role": "user", "content": f"{n} + 1?"},), {"ground_truth": n + 1}, ())
        for n in range(40)
    ]
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert tasks.count("train") > 20


@pytest.mark.parametrize("kind", KINDS[1:])
def test_every_kind_of_file_is_split_alike(kind: str, tmp_path: Path):
    lines = TaskFiles(str(write("jsonl", tmp_path, sums(60))))
    other = TaskFiles(str(write(kind, tmp_path, sums(60))))
    for split in ("train", "validation", "test"):
        assert asked(lines, split) == asked(other, split)


def test_a_task_has_the_number_of_its_row(tmp_path: Path):
    path = json_lines(tmp_path / "rows.jsonl", ["", *sums(5), "", *sums(5, start=5)])
    tasks = TaskFiles(str(path), validation_share=0, test_share=0)
    # lines 0 and 6 are empty
    assert [task.number for task in tasks_of(tasks, "train")] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


def test_folders_patterns_and_lists_name_several_files(tmp_path: Path):
    json_lines(tmp_path / "b.jsonl", sums(10, start=10))
    json_lines(tmp_path / "a.jsonl", sums(10))
    (tmp_path / "notes.txt").write_text("no rows")
    wanted = sorted(f"{n} + 1?" for n in range(20))
    for path in (
        str(tmp_path),
        str(tmp_path / "*.jsonl"),
        [str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")],
        [str(tmp_path), str(tmp_path / "a.jsonl")],  # a.jsonl counts once
    ):
        assert sorted(all_asked(TaskFiles(path))) == wanted


def test_a_link_is_of_the_kind_that_its_name_says(tmp_path: Path):
    json_lines(tmp_path / "0badc0de", sums(3))  # as in the cache of the Hugging Face hub
    (tmp_path / "rows.jsonl").symlink_to(tmp_path / "0badc0de")
    assert len(all_asked(TaskFiles(str(tmp_path / "rows.jsonl")))) == 3


def test_a_saved_dataset_dict_brings_its_splits(tmp_path: Path):
    pytest.importorskip("pyarrow")
    saved(tmp_path / "all/train", sums(50))
    saved(tmp_path / "all/test", sums(4, start=100))
    (tmp_path / "all/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    tasks = TaskFiles(str(tmp_path / "all"))
    assert asked(tasks, "test") == [f"{n} + 1?" for n in range(100, 104)]
    assert tasks.count("validation") > 0  # has no folder, so takes a share of train
    assert tasks.count("train") + tasks.count("validation") == 50


def test_a_limit_keeps_the_first_rows_of_each_split(tmp_path: Path):
    path = str(json_lines(tmp_path / "rows.jsonl", sums(200)))
    whole, limited = TaskFiles(path), TaskFiles(path, limit=3)
    for split in ("train", "validation", "test"):
        assert asked(limited, split) == asked(whole, split)[:3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": []}, "path is"),
        ({"path": ""}, "path is"),
        ({"validation_share": 0.6}, "validation_share is 0.6"),
        ({"test_share": -0.1}, "test_share is -0.1"),
        ({"test_share": float("nan")}, "test_share is nan"),
        ({"form": "verll"}, "form is 'verll'"),
        ({"limit": 0}, "limit is 0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_once(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        TaskFiles(**{"path": "rows.jsonl", **settings})


def test_settings_are_given_in_yaml(tmp_path: Path):
    json_lines(tmp_path / "rows.jsonl", [{"question": "a", "solution": 1}])
    given = f"""
class_path: vagentrl.datasets.TaskFiles
init_args:
  path: [{tmp_path}/rows.jsonl]
  validation_share: 0
  test_share: 0
  fields: {{prompt: question, answer: solution}}
  images: {{class_path: vagentrl.datasets.RowImages, init_args: {{root: pictures}}}}
"""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--tasks", type=Tasks)
    tasks = parser.instantiate(parser.parse_args(["--tasks", given])).tasks
    assert asked(tasks, "train") == ["a"]
    assert tasks.images.root == "pictures"


def test_fields_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="names one field twice"):
        Fields(prompt="text", answer="text")


def no_such_file(folder: Path) -> str:
    return str(folder / "nothing.jsonl")


def unknown_kind(folder: Path) -> str:
    (folder / "rows.csv").write_text("prompt,answer")
    return str(folder / "rows.csv")


def empty_folder(folder: Path) -> str:
    return str(folder)


def train_beside_test(folder: Path) -> str:
    json_lines(folder / "train.jsonl", sums(3))
    json_lines(folder / "test.jsonl", sums(3))
    return str(folder)


def no_rows(folder: Path) -> str:
    return str(json_lines(folder / "rows.jsonl", ["", " "]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (no_such_file, "there is no file"),
        (unknown_kind, "of no known kind"),
        (empty_folder, "has no file that ends in .jsonl"),
        (train_beside_test, r"also test\.jsonl; give path, validation_path and test_path"),
        (no_rows, "no row that can be used: it is empty"),
    ],
)
def test_files_that_cannot_be_used_are_refused_when_they_are_read(
    given: Callable[[Path], str], message: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match=message):
        TaskFiles(given(tmp_path)).count("train")


def test_a_task_that_is_not_there_is_refused_with_what_is_there(tmp_path: Path):
    path = json_lines(tmp_path / "rows.jsonl", sums(3))
    tasks = TaskFiles(str(path), test_share=0, validation_share=0)
    with pytest.raises(ConfigError, match=r"no task 0 for test .*3 for train.*give test_path"):
        tasks.task("test", 0)
    with pytest.raises(ConfigError, match="no task -1 for train"):
        tasks.task("train", -1)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"pip install 'vagentrl\[datasets\]'"):
        TaskFiles(str(tmp_path / "rows.parquet")).count("train")
    json_lines(tmp_path / "rows.jsonl", sums(30))
    assert len(all_asked(TaskFiles(str(tmp_path / "rows.jsonl")))) == 30


@pytest.mark.parametrize("damage", [b"no parquet at all", b"", b"PAR1PAR1"])
def test_a_damaged_parquet_file_is_refused(damage: bytes, tmp_path: Path):
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(damage)
    with pytest.raises(ConfigError, match=r"rows\.parquet"):
        TaskFiles(str(tmp_path / "rows.parquet")).count("train")


def test_a_damaged_gzip_file_is_refused(tmp_path: Path):
    path = json_lines(tmp_path / "rows.jsonl.gz", sums(500))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="damaged"):
        TaskFiles(str(path)).count("train")


def test_what_was_found_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "vagentrl.datasets")
    path = json_lines(tmp_path / "rows.jsonl", [*sums(10), *sums(2), "broken"])
    for _ in range(2):
        tasks = TaskFiles(str(path), validation_share=0, test_share=0)
        assert tasks.count("train") == 10
    assert [record.getMessage() for record in caplog.records] == [
        "rows: 10 for train, 0 for validation, 0 for test",
        f"1 rows are broken and are not used: {path}, line 13: the line is not JSON: Expecting "
        "value: line 1 column 1 (char 0)",
        "2 rows repeat others word for word; each is used once",
    ]
