"""The shipped problems of arithmetic."""

import gzip
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from scripts import make_arithmetic
from vagentrl.environment import Split
from vagentrl.errors import ConfigError
from vagentrl_envs.arithmetic import ArithmeticTasks
from vagentrl_envs.arithmetic.tasks import DATA, RUNGS, picture

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("rung", RUNGS)
def test_the_script_makes_what_is_shipped(rung: int):
    shipped = (DATA / f"rung_{rung}.jsonl.gz").read_bytes()
    assert gzip.decompress(shipped) == make_arithmetic.content(rung)


def test_the_files_are_small():
    assert sum(file.stat().st_size for file in DATA.iterdir()) < 150_000
    assert len(RUNGS) == len(make_arithmetic.LADDER) == len(list(DATA.iterdir()))


def problems(tasks: ArithmeticTasks, split: Split) -> list[dict[str, Any]]:
    return [dict(tasks.task(split, index).interaction) for index in range(tasks.count(split))]


def unordered(problem: str) -> str:
    """Equal for problems that differ in the order of their numbers: 2 * 3 + 4 and 4 + 3 * 2, and
    also 7 - 9 and 9 - 7."""
    terms = re.findall(r"(?:([-+]) |^)([0-9]+(?: [*] [0-9]+)?)", problem)
    parts = [(sign == "-", sorted(factors.split(" * "))) for sign, factors in terms]
    mirrored = [(not negative, factors) for negative, factors in parts]
    return min(str(sorted(parts)), str(sorted(mirrored)))


def test_problems_that_differ_in_order_only_are_told_from_others():
    for one, other in (("2 * 3 + 4", "4 + 3 * 2"), ("7 - 9", "9 - 7"), ("2 + 3 - 4", "3 + 2 - 4")):
        assert unordered(one) == unordered(other)
    assert len({unordered(p) for p in ("2 * 3 + 4", "2 * 4 + 3", "2 + 3 - 4", "2 + 4 - 3")}) == 4


@pytest.mark.parametrize("rung", RUNGS)
def test_no_problem_is_in_two_splits_in_any_order_of_its_numbers(rung: int):
    tasks = ArithmeticTasks([rung])
    found = {split: problems(tasks, split) for split in SPLITS}
    train, validation, test = (
        {unordered(each["problem"]) for each in found[split]} for split in SPLITS
    )
    assert not train & validation and not train & test and not validation & test
    assert all(each["rung"] == rung for split in SPLITS for each in found[split])
    assert len(found["validation"]) >= 19 and len(found["test"]) >= 19


def test_no_problem_is_in_two_rungs():
    found = Counter(
        each["problem"] for split in SPLITS for each in problems(ArithmeticTasks(), split)
    )
    assert max(found.values()) == 1
    assert len(found) == 5237


def test_every_answer_is_right():
    for split in SPLITS:
        for each in problems(ArithmeticTasks(), split):
            assert set(each["problem"]) <= set("0123456789 +-*")
            assert eval(each["problem"]) == int(each["ground_truth"])


def test_a_problem_is_asked_in_words_or_shown_as_a_picture():
    in_words, shown = ArithmeticTasks([1]), ArithmeticTasks([1], observation="image")
    task, seen = in_words.task("train", 0), shown.task("train", 0)
    # the first rows of rung 1 that are for training
    assert task.messages == ({"role": "user", "content": "What is 3 + 4?"},)
    assert task.interaction == {
        "name": "arithmetic", "problem": "3 + 4", "rung": 1, "ground_truth": "7"
    }  # fmt: skip
    assert seen.messages == ({"role": "user", "content": "<image>\nWhat is it?"},)
    assert seen.interaction == task.interaction
    assert [image.tobytes() for image in seen.images] == [picture("3 + 4").tobytes()]


def test_every_problem_fits_into_its_picture():
    blank = np.full((28, 140, 3), 255)
    for each in ("3", "99 - 98", "18 + 9 * 9", "9 + 9 - 19"):
        pixels = np.asarray(picture(each))
        assert pixels.shape == blank.shape and set(np.unique(pixels)) == {0, 255}
        edges = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
        assert all((edge == 255).all() for edge in edges)
    assert picture("3 + 4").tobytes() != picture("4 + 3").tobytes()


def test_rungs_that_are_not_there_are_refused():
    for rungs in ([], [0], [1, 8]):
        with pytest.raises(ConfigError, match="give some of 1, 2, 3, 4, 5, 6, 7"):
            ArithmeticTasks(rungs)
    with pytest.raises(ConfigError, match="give text or image"):
        ArithmeticTasks(observation="sound")  # pyright: ignore[reportArgumentType]
