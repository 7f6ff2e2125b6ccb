"""What the agent is told of a task before it replies."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from PIL import Image

from tests.interactions.tables import SEED, environment
from tests.interactions.user_code import user_module
from vagentrl.environment import Split
from vagentrl.errors import RowError
from vagentrl.formats import NoThink
from vagentrl.interactions import InteractionEnvironment, Task, Tasks
from vagentrl.types import Example, Observation

__all__ = ["user_module"]


class OneTask(Tasks):
    """A source of the user's, which checks nothing."""

    def __init__(
        self, messages: Sequence[Mapping[str, Any]], images: tuple[Image.Image, ...]
    ) -> None:
        self._task = Task(tuple(messages), images, {}, number=7)

    def count(self, split: Split) -> int:
        return 1

    def task(self, split: Split, index: int) -> Task:
        return self._task


def about(
    user_module: str,
    messages: Sequence[Mapping[str, Any]],
    images: tuple[Image.Image, ...] = (),
    **settings: Any,
) -> InteractionEnvironment:
    return InteractionEnvironment(OneTask(messages, images), f"{user_module}.Ducks", **settings)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "the roles"),
        ([{"role": "system", "content": "x"}], "the roles"),
        ([{"role": "assistant", "content": "x"}], "the roles"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": "x"}], "the roles"),
        ([{"role": "tool", "content": "x"}], r"roles \['tool'\]"),
        ([{"content": "x"}], "the roles"),
        ([{"role": "user", "content": None}], "the user's content is None"),
        ([{"role": "user", "content": "<image><image>"}], "has 1 images, but 2 <image>"),
    ],
)
def test_a_row_that_is_no_prompt_is_named_by_its_number(
    user_module: str, messages: Sequence[Mapping[str, Any]], message: str
):
    broken = about(user_module, messages, (Image.new("RGB", (2, 2)),))
    with pytest.raises(RowError, match=rf"row 7.*{message}"):
        broken.reset(SEED)


def test_system_message_and_examples_come_from_the_row(user_module: str):
    cat = Image.new("RGB", (4, 4), "gray")
    messages = [
        {"role": "system", "content": "Count <image>s."},
        {"role": "user", "content": "<image>?"},
        {"role": "assistant", "content": "One <image>."},
        {"role": "user", "content": "And <image><image>?"},
    ]
    shown = about(user_module, messages, (cat,) * 3, system="Be brief.")
    assert shown.system_prompt() == "Be brief."  # no episode has begun
    assert shown.reset(SEED) == Observation("And <image><image>?", (cat, cat))
    assert shown.system_prompt() == "Count (image)s."  # a system prompt has no images
    assert shown.examples() == (Example(Observation("<image>?", (cat,)), "One <image>."),)
    assert [message["content"] for message in shown._messages] == [
        message["content"] for message in messages
    ]
    shown.close()


def test_without_a_system_message_there_is_the_settings_and_the_formats(user_module: str):
    plain = environment(f"{user_module}.Ducks")
    plain.reset(SEED)
    assert plain.system_prompt() == ""
    tagged = environment(f"{user_module}.Ducks", system="Be brief.", format=NoThink())
    tagged.reset(SEED)
    assert tagged.system_prompt() == "Be brief.\n\n" + NoThink().instructions(1)
    plain.close()
    tagged.close()
