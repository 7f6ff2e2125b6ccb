from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests import toy
from tests.viewer.stored import full_scores, full_trajectory, name_tokens, store
from vagentrl.errors import ShapeError
from vagentrl.types import Observation
from vagentrl.viewer.folder import TrajectoryFolder
from vagentrl.viewer.reading import FOLDER, read_run
from vagentrl.viewer.records import Provenance, RowWriter, TokenScores, image_name


def test_every_field_survives_the_way_to_the_disk_and_back(tmp_path: Path):
    trajectory = full_trajectory()
    [turn] = trajectory.turns
    count = len(turn.reply_ids)
    writer = RowWriter(name_tokens)
    scores = full_scores(count)
    came = Provenance("me", "mine", "its", 3)
    writer.add(trajectory, split="val", iteration=7, member=1, scores=scores, provenance=came)
    TrajectoryFolder(tmp_path / FOLDER, 1e9).write("val", 7, writer.rows, writer.images)
    [file] = read_run(tmp_path).files
    assert (file.kind, file.number, file.groups) == ("val", 7, 1)
    [row] = file.rows(0)
    [read] = row.pop("turns")
    # seed 4 starts with 1 left; "go" ends the episode, with a reward of 1
    assert row == {
        "environment": "toy",
        "split": "val",
        "stop": "failed",
        "error": "EnvError: no water",
        "iteration": 7,
        "group": 3,
        "member": 1,
        "seed": 4,
        "transition_seed": 11,
        "success": True,
        "learned": True,
        "return": 1.0,
        "earlier_return": -0.5,
        "earlier_turns": 2,
        "policy": "me",
        "episode": "mine",
        "origin": "its",
        "origin_turn": 3,
        "final_observation": "<image>over",
        "final_images": [image_name(Image.new("RGB", (2, 3), "red"))],
    }
    nan = read.pop("values")
    assert nan[0] != nan[0] and nan[1:] == [place / 4 for place in range(1, count)]
    sampled = read.pop("logprobs")
    assert sampled == pytest.approx([-0.5 - place / 100 for place in range(count)])
    prompt = list(turn.prompt.ids)
    assert read == {
        "observation": "<image>1 left, luck 0",
        "images": [image_name(toy.picture(1))],
        "hint": "Say go.",
        "reply": "<answer>go</answer>",
        "thought": "one is left",
        "actions": ["go"],
        "problem": "too short",
        "finish": "length",
        "reward": 1.0,
        "bonus": 0.25,
        "continued_value": 0.75,
        "metrics": [("success", 1.0), ("luck", 0.0)],
        "claims": [
            {
                "kind": "observation",
                "text": "two left",
                "truth": "3 left",
                "score": 0.5,
                "reason": "half right",
            }
        ],
        "policy_version": 7,
        "prompt_whole": True,
        "prompt_ids": prompt,
        "prompt_tokens": [f"<{id}>" for id in prompt],
        "reply_ids": list(turn.reply_ids),
        "reply_tokens": [f"<{id}>" for id in turn.reply_ids],
        "actor_logprobs": [-1.0 - place / 4 for place in range(count)],
        "reference_logprobs": [-2.0 - place / 4 for place in range(count)],
        "entropies": [place / 4 for place in range(count)],
        "advantages": [place / 4 - 1 for place in range(count)],
    }


def test_stored_images_show_what_the_agent_saw(tmp_path: Path):
    store(tmp_path, [full_trajectory()])
    folder = tmp_path / FOLDER / "images"
    with Image.open(folder / image_name(toy.picture(1))) as image:
        assert image.tobytes() == toy.picture(1).tobytes()
    assert len(list(folder.iterdir())) == 2  # the turn's and the last


def test_an_image_is_stored_once_however_often_it_is_shown(tmp_path: Path):
    # both episodes begin with 1 left and end with 0 left
    store(tmp_path, [toy.play([toy.GO], seed=0, images=True)] * 2)
    store(tmp_path, [toy.play([toy.GO], seed=4, images=True)], iteration=1)
    assert len(list((tmp_path / FOLDER / "images").iterdir())) == 2


def test_images_of_other_modes_are_told_apart_by_what_they_show():
    red, blue = (Image.new("RGB", (4, 4), colour).convert("P") for colour in ("red", "blue"))
    for image in (red, blue):
        image.putdata([0] * 16)  # the same indices into different palettes
    blue.putpalette([0, 0, 255])
    red.putpalette([255, 0, 0])
    assert image_name(red) != image_name(blue)
    assert image_name(Image.new("RGB", (2, 8))) != image_name(Image.new("RGB", (8, 2)))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "F", "I", "HSV", "I;16"])
def test_images_of_every_mode_are_stored(mode: str, tmp_path: Path):
    played = toy.play([toy.GO], seed=4)
    seen = Observation("<image>", (Image.new(mode, (3, 3)),))
    store(tmp_path, [replace(played, final_observation=seen)])
    [path] = (tmp_path / FOLDER / "images").iterdir()
    with Image.open(path) as image:
        assert image.size == (3, 3)


def test_text_that_no_file_can_hold_is_stored_as_escape_sequences(tmp_path: Path):
    played = toy.play([toy.GO], seed=4)
    [turn] = played.turns
    turn = replace(turn, reply=replace(turn.reply, text="a\ud800b\x00c"))
    store(tmp_path, [replace(played, turns=(turn,))])
    [row] = read_run(tmp_path).files[0].rows(0)
    assert row["turns"][0]["reply"] == "a\\ud800b\x00c"


def test_scores_that_do_not_fit_are_refused():
    played, writer = toy.play([toy.GO], seed=4), RowWriter(name_tokens)
    with pytest.raises(ShapeError, match="2 scores do not fit 1 turns"):
        writer.add(played, split="train", iteration=0, member=0, scores=[TokenScores()] * 2)
    few = [TokenScores(values=[1.0])]
    with pytest.raises(ShapeError, match="1 values do not fit a reply of"):
        writer.add(played, split="train", iteration=0, member=0, scores=few)


def test_other_programs_can_read_the_files(tmp_path: Path):
    store(tmp_path, [full_trajectory()])
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / FOLDER / "train-000000.parquet")
    assert table.column("seed").to_pylist() == [4]
