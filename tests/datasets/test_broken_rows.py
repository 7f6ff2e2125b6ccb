"""Rows that are broken are counted and named; the others are used."""

from pathlib import Path

import pytest

from tests.datasets.files import SPLITS, all_asked, json_lines, parquet, sums, tasks_of
from vagentrl.datasets import TaskFiles
from vagentrl.datasets import json_lines as lines_module
from vagentrl.errors import ConfigError, RowError

BROKEN = {
    "no JSON": b'{"prompt": "a", "answer": 1',
    "no UTF-8": b'{"prompt": "a\xff", "answer": 1}',
    "NUL byte": b'{"prompt": "a\x00", "answer": 1}',
    "escaped NUL": b'{"prompt": "a\\u0000", "answer": 1}',
    "half a surrogate": b'{"prompt": "a\\ud800", "answer": 1}',
    "half a surrogate in the answer": b'{"prompt": "a\\u0000", "answer": "\\ud800"}',
    "UTF-16": '{"prompt": "a", "answer": 1}'.encode("utf-16"),
    "a list": b"[1, 2]",
    "a number": b"7",
    "nested deeply": b"[" * 100_000,
    "a number of 5000 digits": b'{"prompt": "a", "answer": ' + b"1" * 5000 + b"}",
    "no prompt": b'{"answer": 1}',
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_line_is_named_and_the_others_are_used(broken: bytes, tmp_path: Path):
    path = json_lines(tmp_path / "rows.jsonl", sums(20))
    good = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*good[:9], broken, *good[9:]]))
    tasks = TaskFiles(str(path))
    assert sorted(all_asked(tasks)) == sorted(f"{n} + 1?" for n in range(20))
    assert tasks.index.broken == 1
    assert f"{path}, line 10: " in tasks.index.problems[0]


@pytest.mark.parametrize("depth", range(700, 1000, 20))
def test_a_row_that_is_nested_deeply_does_no_harm(depth: int, tmp_path: Path):
    nested = "[" * depth + "]" * depth
    row = f'{{"prompt": "a", "answer": 1, "interaction_kwargs": {{"deep": {nested}}}}}'
    tasks = TaskFiles(str(json_lines(tmp_path / "rows.jsonl", [*sums(3), row])))
    assert set(all_asked(tasks)) - {"a"} == {"0 + 1?", "1 + 1?", "2 + 1?"}


def test_a_lone_surrogate_outside_of_the_prompt_does_no_harm(tmp_path: Path):
    row = '{"prompt": "a", "answer": "\\ud800", "interaction_kwargs": {"name": "x"}}'
    tasks = TaskFiles(str(json_lines(tmp_path / "rows.jsonl", [row])))
    assert all_asked(tasks) == ["a"]


def test_a_line_without_end_is_skipped_in_flat_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 2**16)
    monkeypatch.setattr(lines_module, "_CHUNK", 2**12)
    good = [f'{{"prompt": "{n}?", "answer": 1}}\n'.encode() for n in range(4)]
    long = b'{"prompt": "' + b"a" * 300_000 + b'", "answer": 1}\n'
    path = tmp_path / "rows.jsonl"
    path.write_bytes(good[0] + long + good[1] + long + good[2] + good[3] + long[:-1])
    tasks = TaskFiles(str(path))
    assert sorted(all_asked(tasks)) == ["0?", "1?", "2?", "3?"]
    assert tasks.index.broken == 3
    assert [problem.split(": ")[0] for problem in tasks.index.problems] == [
        f"{path}, line {number}" for number in (2, 4, 7)
    ]


def test_line_ends_of_windows_and_a_byte_order_mark_are_read(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    lines = [f'{{"prompt": "é{n}?", "answer": 1}}' for n in range(3)]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert sorted(all_asked(TaskFiles(str(path)))) == ["é0?", "é1?", "é2?"]


def test_only_the_first_broken_rows_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = json_lines(tmp_path / "rows.jsonl", ["broken"] * 12 + sums(3))
    tasks = TaskFiles(str(path))
    assert (tasks.index.broken, len(tasks.index.problems)) == (12, 5)
    (told,) = [r.getMessage() for r in caplog.records if "broken" in r.getMessage()]
    assert told.startswith("12 rows are broken") and "line 5: " in told and "line 6" not in told
    assert told.endswith("; and 7 more")


def test_a_file_of_broken_rows_is_refused_with_the_first_of_them(tmp_path: Path):
    path = json_lines(tmp_path / "rows.json", ["[", '{"prompt": "a"}', "]"])
    with pytest.raises(ConfigError, match=r"no row that can be used: 3 are broken: .*line 1: "):
        TaskFiles(str(path)).count("train")


def test_a_parquet_row_that_is_broken_is_named_by_its_number(tmp_path: Path):
    pytest.importorskip("pyarrow")
    rows = [{**row, "prompt": None if n == 7 else row["prompt"]} for n, row in enumerate(sums(20))]
    path = parquet(tmp_path / "rows.parquet", rows)
    tasks = TaskFiles(str(path))
    assert len(all_asked(tasks)) == 19
    assert f"{path}, row 7 (counted from 0): there is no 'prompt'" in tasks.index.problems[0]


def test_a_parquet_text_that_is_not_utf_8_breaks_its_row_alone(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    stored = [f"{n}?".encode() for n in range(100)]
    stored[70] = b"\xff\xfe"
    texts = pa.array(stored, pa.binary()).view(pa.string())
    table = pa.table({"prompt": texts, "answer": list(range(100))})
    __import__("pyarrow.parquet").parquet.write_table(table, tmp_path / "rows.parquet")
    tasks = TaskFiles(str(tmp_path / "rows.parquet"))
    assert len(all_asked(tasks)) == 99
    assert "row 70 " in tasks.index.problems[0]


def test_an_image_that_is_gone_is_told_when_the_row_is_used(tmp_path: Path):
    row = {"prompt": "<image>", "answer": 1, "images": "gone.png"}
    path = json_lines(tmp_path / "rows.jsonl", [*sums(3), row])
    tasks = TaskFiles(str(path), validation_share=0, test_share=0)
    assert tasks.index.broken == 0
    with pytest.raises(RowError, match=rf"{path}, line 4: the image 'gone\.png' cannot be used"):
        tasks.task("train", 3)
    assert tasks.task("train", 2).number == 2


def test_strange_values_beside_the_question_are_kept(tmp_path: Path):
    pytest.importorskip("pyarrow")
    import datetime
    import decimal

    kwargs = {
        "name": "x",
        "day": datetime.date(2026, 1, 2),
        "price": decimal.Decimal("1.50"),
        "raw": b"\xff",
        "numbers": [1, 2],
    }
    rows = [{"prompt": "a", "answer": 1.5, "interaction_kwargs": kwargs}]
    tasks = TaskFiles(str(parquet(tmp_path / "rows.parquet", rows)))
    (task,) = (task for split in SPLITS for task in tasks_of(tasks, split))
    assert task.interaction == {**kwargs, "ground_truth": 1.5}
