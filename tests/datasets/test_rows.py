"""What a row says, in verl's form and in the plain one."""

import json
from typing import Any

import pytest

from tests.datasets.files import verl_row
from vagentrl.datasets import Fields
from vagentrl.datasets.row import Form, read_row
from vagentrl.errors import RowError

TALK = [{"role": "user", "content": "1 + 1?"}]


def test_a_row_of_verls_form_says_who_answers_and_what_is_right():
    row = read_row(verl_row("1 + 1?", "2", name="gsm8k", query="1 + 1?"))
    assert row.messages == (
        {"role": "system", "content": "You add numbers."},
        {"role": "user", "content": "1 + 1?"},
    )
    assert row.interaction == {"name": "gsm8k", "query": "1 + 1?", "ground_truth": "2"}


def test_the_interactions_own_ground_truth_counts_before_the_reward_models():
    row = verl_row("1 + 1?", "2", name="gsm8k", ground_truth="two")
    assert read_row(row).interaction["ground_truth"] == "two"
    row["extra_info"]["interaction_kwargs"]["ground_truth"] = None  # as Parquet fills gaps
    assert read_row(row).interaction["ground_truth"] == "2"


def test_a_row_of_the_plain_form_is_a_question_with_its_answer():
    row = read_row({"prompt": "1 + 1?", "answer": 2})
    assert row.messages == ({"role": "user", "content": "1 + 1?"},)
    assert row.interaction == {"ground_truth": 2}
    named = read_row({"prompt": "1 + 1?", "answer": 2}, interaction="sums")
    assert named.interaction == {"name": "sums", "ground_truth": 2}


def test_a_row_names_its_interaction_at_the_top_too():
    row = {"prompt": TALK, "interaction_kwargs": {"name": "mine", "ground_truth": "2"}}
    read = read_row(row, interaction="other")
    assert read.interaction == {"name": "mine", "ground_truth": "2"}


def test_the_arguments_in_extra_info_count_before_those_at_the_top():
    row = verl_row("1 + 1?", "2", name="inner")
    row["interaction_kwargs"] = {"name": "outer", "level": 1}
    assert read_row(row).interaction == {"name": "inner", "level": 1, "ground_truth": "2"}


@pytest.mark.parametrize("name", [None, "absent"])
def test_a_name_that_is_missing_is_left_out(name: str | None):
    row = verl_row("1 + 1?", "2") if name else verl_row("1 + 1?", "2", name=None)
    assert "name" not in read_row(row).interaction


def test_objects_may_be_written_as_json():
    row: dict[str, Any] = verl_row("1 + 1?", "2", name="gsm8k")
    as_json = {
        key: json.dumps(row[key]) if key in ("prompt", "reward_model", "extra_info") else value
        for key, value in row.items()
    }
    assert read_row(as_json) == read_row(row)
    nested = {**row, "extra_info": {"interaction_kwargs": '{"name": "gsm8k"}'}}
    assert read_row(nested) == read_row(row)


def test_messages_may_be_stored_by_field():
    stored = {"role": ["user", "assistant", "user"], "content": ["a", "b", "c"]}
    row = read_row({"prompt": stored, "answer": "d"})
    assert [tuple(message.values()) for message in row.messages] == [
        ("user", "a"), ("assistant", "b"), ("user", "c")
    ]  # fmt: skip


def test_fields_may_have_other_names():
    fields = Fields(prompt="question", answer="solution")
    row = read_row({"question": "1 + 1?", "solution": "2"}, fields)
    assert (row.messages[0]["content"], row.interaction["ground_truth"]) == ("1 + 1?", "2")
    unanswered = read_row({"question": "Say yes."}, Fields(prompt="question", answer=None))
    assert unanswered.interaction == {}


def test_a_prompt_in_brackets_that_is_no_list_of_messages_is_a_text():
    for text in ("[1, 2] sorted?", "[1, 2]", '["a"]'):
        assert read_row({"prompt": text, "answer": 1}).messages[0]["content"] == text


def test_control_tokens_in_a_prompt_stay_text():
    text = "<|im_end|>\n<|im_start|>assistant\n<|image_pad|></s>[INST]"
    assert read_row({"prompt": text, "answer": 1}).messages[0]["content"] == text


def test_images_go_to_their_placeholders_in_order():
    blocks = [
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "or"},
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": "c.png"}},
    ]
    messages = [
        {"role": "user", "content": "<image> first"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": blocks},
    ]
    row = read_row({"prompt": messages, "answer": 1, "images": ["0.png", {"path": "b.png"}]})
    assert [image.place for image in row.images] == ["0.png", "a.png", "b.png", "c.png"]
    assert row.messages[2]["content"] == "<image>or<image><image>"


@pytest.mark.parametrize(
    "image", [b"png", {"bytes": b"png", "path": "a.png"}, {"bytes": b"png", "path": None}]
)
def test_the_bytes_of_an_image_count_before_its_path(image: Any):
    row = read_row({"prompt": "<image>", "answer": 1, "images": image})
    assert [(shown.content, shown.place) for shown in row.images] == [(b"png", "")]


@pytest.mark.parametrize(
    ("row", "form", "message"),
    [
        ({}, "auto", "no 'prompt'"),
        ({"question": "a"}, "auto", r"the fields are question\); set fields.prompt"),
        ({"prompt": "  ", "answer": 1}, "auto", "empty"),
        ({"prompt": 7, "answer": 1}, "auto", r"the prompt is 7 \(int\)"),
        ({"prompt": [], "answer": 1}, "auto", "the prompt is"),
        ({"prompt": ["a"], "answer": 1}, "auto", "a message is 'a'"),
        ({"prompt": "a", "answer": 1}, "verl", "wants a list of messages"),
        ({"prompt": TALK, "answer": 1}, "plain", "wants a text"),
        ({"prompt": "a"}, "auto", "no 'answer'; set fields.answer"),
        ({"prompt": "a", "extra_info": {}}, "plain", "no 'answer'"),
        ({"prompt": [{"role": "robot", "content": "a"}]}, "auto", "role is 'robot'"),
        ({"prompt": [{"role": ["user"], "content": "a"}]}, "auto", "role is"),
        ({"prompt": [{"role": "user", "content": None}]}, "auto", "content is None"),
        ({"prompt": [{"role": "user", "content": []}]}, "auto", "content is"),
        ({"prompt": [{"role": "user", "content": ["a"]}]}, "auto", "block is 'a'"),
        ({"prompt": [{"role": "user", "content": [{"type": "video"}]}]}, "auto", "block is"),
        ({"prompt": [*TALK, {"role": "assistant", "content": "2"}]}, "auto", "the user's last"),
        ({"prompt": [{"role": "system", "content": "a"}]}, "auto", r"roles \['system'\];"),
        ({"prompt": [*TALK, *TALK]}, "auto", r"roles \['user', 'user'\];"),
        ({"prompt": "a\0b", "answer": 1}, "auto", "NUL"),
        ({"prompt": "a\ud800b", "answer": 1}, "auto", "no valid Unicode"),
        ({"prompt": "<image>", "answer": 1}, "auto", r"more <image> placeholders .*\(0\)"),
        ({"prompt": "a", "answer": 1, "images": ["a.png"]}, "auto", "1 of 1 images have no"),
        ({"prompt": "<image>", "answer": 1, "images": [7]}, "auto", r"an image is 7 \(int\)"),
        ({"prompt": "<image>", "answer": 1, "images": ["a\0"]}, "auto", "an image is"),
        ({"prompt": "a", "extra_info": [1]}, "auto", "'extra_info' is"),
        ({"prompt": "a", "extra_info": "{broken"}, "auto", "'extra_info' is"),
        ({"prompt": TALK, "interaction_kwargs": {"name": 7}}, "auto", "name is 7"),
        (
            {
                "prompt": [
                    {"role": "system", "content": [{"type": "image", "image": "a.png"}]},
                    *TALK,
                ]
            },
            "auto",
            "an image stands in a message that is not the user's",
        ),
    ],
)
def test_a_row_that_cannot_be_used_says_why(row: dict[str, Any], form: Form, message: str):
    with pytest.raises(RowError, match=message):
        read_row(row, form=form)
