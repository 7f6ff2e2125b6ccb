"""Rows in memory."""

import logging
from typing import Any, get_args

import pytest
from PIL import Image

from vagentrl.datasets import Fields, ListTasks
from vagentrl.environment import Split
from vagentrl.errors import ConfigError
from vagentrl.interactions import Task

SPLITS: tuple[Split, ...] = get_args(Split)


def of(tasks: ListTasks, split: Split) -> list[Task]:
    return [tasks.task(split, index) for index in range(tasks.count(split))]


def test_a_question_is_in_one_split_whatever_its_answer():
    rows = [{"prompt": f"{n}?", "answer": str(answer)} for n in range(60) for answer in (1, 2)]
    tasks = ListTasks(rows)
    asked = {split: {task.messages[0]["content"] for task in of(tasks, split)} for split in SPLITS}
    assert all(asked.values())
    assert sum(map(len, asked.values())) == 60  # so no question is in two splits
    assert sum(map(tasks.count, SPLITS)) == len(rows)


def test_broken_rows_are_left_out_and_named_once(caplog: pytest.LogCaptureFixture):
    rows: list[dict[str, Any]] = [{"prompt": f"{n}?", "answer": "y"} for n in range(5)]
    rows[1], rows[3] = {"prompt": ""}, {"question": "?"}
    with caplog.at_level(logging.WARNING):
        tasks = ListTasks(rows)
    assert {task.number for split in SPLITS for task in of(tasks, split)} == {0, 2, 4}
    [record] = caplog.records
    assert "2 of 5 rows are broken and not used: row 1: " in record.getMessage()
    assert "row 3: " in record.getMessage()


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "none of 0 rows can be used$"), ([{}], "none of 1 rows can be used: row 0: there is no")],
)
def test_rows_of_which_none_can_be_used_are_refused(rows: list[dict[str, Any]], message: str):
    with pytest.raises(ConfigError, match=message):
        ListTasks(rows)


def test_images_may_be_pil_images_and_fields_have_other_names():
    red = Image.new("RGB", (40, 30), "red")
    row = {"question": "What is <image>?", "answer": "red", "image": red, "part": "test"}
    fields = Fields(prompt="question", images="image", split="part")
    [task] = of(ListTasks([row], fields, interaction="colours"), "test")
    assert task.messages == ({"role": "user", "content": "What is <image>?"},)
    assert task.interaction == {"ground_truth": "red", "name": "colours"}
    [image] = task.images
    assert image.getpixel((0, 0)) == (255, 0, 0)
