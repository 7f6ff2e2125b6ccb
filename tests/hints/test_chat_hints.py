import asyncio
import base64
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vagentrl.chat import ChatModel, ChatReply
from vagentrl.errors import ChatError, ConfigError
from vagentrl.formats import NoThink
from vagentrl.hints import (
    ChatHintModel,
    Exchange,
    Hint,
    HintedEnvironment,
    HintKind,
    Situation,
)
from vagentrl.types import Observation, Reply
from vagentrl_envs.frozen_lake import FrozenLake

corridor = partial(FrozenLake, map=["SFFG"], observation="text", format=NoThink())


class FixedChat(ChatModel):
    """Gives a fixed reply and records the prompts and the event loops."""

    def __init__(self, text: str = "  Go right.\n") -> None:
        self.text = text
        self.prompts: list[str] = []
        self.loops: set[int] = set()

    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        self.prompts.append(prompt)
        self.loops.add(id(asyncio.get_running_loop()))
        return ChatReply(self.text, 40, 3, 0.001)

    def identity(self) -> str:
        return "fixed"


class BarrierChat(FixedChat):
    """Gives no reply before it has received `size` prompts."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        reply = await super().complete(prompt)
        async with asyncio.timeout(20):
            while len(self.prompts) < self.size:
                await asyncio.sleep(0.005)
        return reply


class SlowChat(FixedChat):
    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        await asyncio.sleep(60)
        return ChatReply("too late")


class FailingChat(FixedChat):
    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        raise ChatError("connection refused")


def situation(kind: HintKind = "exploit", turn: int = 1) -> Situation:
    environment = corridor()
    environment.reset(0)
    past = (Exchange(Observation("P__G", hint="Hint: Wait."), Reply("I go {left}.")),)
    return Situation(kind, environment, past, Observation("P__G now"), (2, 3, turn))


@pytest.mark.parametrize("kind", ["exploit", "explore"])
def test_the_prompt_has_the_task_the_past_and_the_present(kind: HintKind):
    chat = FixedChat()
    hint = ChatHintModel(chat).hint(situation(kind))
    assert (hint.text, hint.prompt_tokens, hint.reply_tokens, hint.cost) == (
        "Go right.", 40, 3, 0.001
    )  # fmt: skip
    [prompt] = chat.prompts
    places = [
        prompt.index(part)
        for part in (
            corridor().system_prompt(),
            "P__G\n",
            "Hint: Wait.",
            "I go {left}.",
            "P__G now",
        )
    ]
    assert places == sorted(places)


def test_the_two_kinds_have_different_prompts():
    hint_model = ChatHintModel(FixedChat())
    assert hint_model.prompt(situation("exploit")) != hint_model.prompt(situation("explore"))


def test_templates_can_be_replaced_and_may_name_the_state(tmp_path: Path):
    path = tmp_path / "mine.txt"
    path.write_text("{json} $$1 $task | $observation | $state")
    hint_model = ChatHintModel(FixedChat(), explore_template=str(path))
    task, state = corridor().system_prompt(), situation().environment.state()
    assert state is not None
    assert (
        hint_model.prompt(situation("explore"))
        == f"{{json}} $1 {task} | P__G now | {state.natural}"
    )
    assert "You coach" in hint_model.prompt(situation("exploit"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$task $observation $score", r"there is no \$score"),
        ("$task {observation}", r"lacks \$observation"),
        ("$task $observation $", r"write \$\$ for a dollar sign"),
    ],
)
def test_a_template_with_wrong_placeholders_is_refused(text: str, message: str, tmp_path: Path):
    path = tmp_path / "wrong.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        ChatHintModel(FixedChat(), exploit_template=str(path))


def test_a_template_file_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"the prompt nowhere\.txt cannot be read"):
        ChatHintModel(FixedChat(), exploit_template="nowhere.txt")


def test_all_environments_ask_concurrently_in_one_event_loop():
    chat = BarrierChat(64)
    hint_model = ChatHintModel(chat)
    environments = [HintedEnvironment(corridor, hint_model) for _ in range(64)]
    with ThreadPoolExecutor(64) as threads:
        shown = list(threads.map(lambda environment: environment.reset(0).hint, environments))
    assert shown == ["Hint: Go right."] * 64
    assert len(chat.loops) == 1
    assert HintedEnvironment(corridor, hint_model).reset(2).hint == "Hint: Go right."
    assert len(chat.loops) == 1


def test_a_patience_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"patience_s is 0; give more than 0"):
        ChatHintModel(FixedChat(), patience_s=0)


def test_an_empty_hint_is_a_failure():
    with pytest.raises(ChatError, match="an empty hint"):
        ChatHintModel(FixedChat(" \n")).hint(situation())


def test_what_a_failed_hint_cost_is_reported():
    class Billed(FixedChat):
        async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256):
            raise ChatError("cut off", prompt_tokens=70, reply_tokens=30, cost=0.5)

    for chat in (Billed(), FixedChat("<think>" + "so " * 50)):
        environment = HintedEnvironment(corridor, ChatHintModel(chat))
        environment.reset(0)
        found = environment.step(Reply("", actions=("Up",))).metrics
        assert (found["hints_asked"], found["hint_failures"], found["hints"]) == (1, 1, 0)
        assert found["hint_prompt_tokens"] > 0 and found["hint_reply_tokens"] > 0


@pytest.mark.parametrize(
    "said",
    ["<think>Left? No.</think>Go right.", "Left? No.</think>\n\nGo right.",
     "<thinking>Left?\n</thinking> Go right."],
)  # fmt: skip
def test_reasoning_is_not_part_of_a_hint(said: str):
    assert ChatHintModel(FixedChat(said)).hint(situation()).text == "Go right."


def test_an_image_is_mentioned_and_its_placeholder_is_not():
    seen = replace(situation(), observation=Observation("<image> now", (Image.new("RGB", (2, 2)),)))
    prompt = ChatHintModel(FixedChat()).prompt(seen)
    assert "<image>" not in prompt and "(an image that is not shown to you) now" in prompt


class SeeingChat(FixedChat):
    """Records the conversations that it is asked to continue."""

    def __init__(self) -> None:
        super().__init__()
        self.conversations: list[Any] = []

    async def converse(
        self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int = 256
    ) -> ChatReply:
        self.conversations.append(messages)
        return ChatReply("Go right.")


def coloured(*colours: str) -> tuple[Image.Image, ...]:
    return tuple(Image.new("RGB", (8, 4), colour) for colour in colours)


def with_pictures(now: str = "white") -> Situation:
    """Three pictures in two turns, and an agent that writes a placeholder of its own."""
    past = Exchange(Observation("<image> and <image>", coloured("red", "green")), Reply("<image>!"))
    return replace(situation(), past=(past,), observation=Observation("<image> now", coloured(now)))


def colours_in(message: Any) -> list[Any]:
    *blocks, _ = message["content"]
    urls = [block["image_url"]["url"].split(",")[1] for block in blocks]
    pictures = [Image.open(BytesIO(base64.b64decode(url))) for url in urls]
    return [(picture.size, picture.getpixel((0, 0))) for picture in pictures]


def test_a_model_that_sees_is_shown_the_last_pictures_which_the_prompt_numbers():
    chat = SeeingChat()
    hint_model = ChatHintModel(chat, images=True, max_images=2, max_image_side=4)
    assert hint_model.hint(with_pictures()).text == "Go right."
    [[message]] = chat.conversations
    assert colours_in(message) == [((4, 2), (0, 128, 0)), ((4, 2), (255, 255, 255))]
    text = message["content"][-1]["text"]
    unseen = "(an image that is not shown to you)"
    assert f"{unseen} and (picture 1)" in text and "(picture 2) now" in text
    assert f"{unseen}!" in text and "<image>" not in text  # what the agent wrote is no picture
    assert not chat.prompts


def test_a_model_that_sees_is_asked_in_words_where_there_are_no_pictures():
    chat = SeeingChat()
    ChatHintModel(chat, images=True).hint(situation())
    assert len(chat.prompts) == 1 and not chat.conversations


def test_a_record_tells_pictures_apart(tmp_path: Path):
    chat = SeeingChat()
    hint_model = ChatHintModel(chat, images=True, record=str(tmp_path))
    for colour in ("white", "black", "white"):
        hint_model.hint(with_pictures(colour))
    assert len(chat.conversations) == 2


def test_a_model_that_reads_text_only_is_not_shown_pictures():
    with pytest.raises(ConfigError, match="FixedChat answers single prompts of text only"):
        ChatHintModel(FixedChat(), images=True)


@pytest.mark.parametrize("name", ["max_tokens", "max_images", "max_image_side"])
def test_counts_below_one_are_refused(name: str):
    settings: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"ChatHintModel.{name} is 0; give 1 or more"):
        ChatHintModel(FixedChat(), **settings)


@pytest.mark.parametrize("kind", ["exploit", "explore"])
def test_hints_are_abstract_unless_concrete_ones_are_wanted(kind: HintKind):
    abstract = ChatHintModel(FixedChat()).prompt(situation(kind))
    assert "no exact action" in abstract and "$detail" not in abstract
    concrete = ChatHintModel(FixedChat(), concrete=True).prompt(situation(kind))
    assert "no exact action" not in concrete and "name the exact action" in concrete


def test_to_explore_is_to_choose_among_several_ways():
    prompt = ChatHintModel(FixedChat()).prompt(situation("explore"))
    assert "several different\nways to go on" in prompt and "less\npromising" in prompt


def test_a_record_of_another_user_costs_the_record_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    hint_model = ChatHintModel(FixedChat(), record=str(tmp_path))
    hint_model.hint(situation())
    [file] = (path for path in tmp_path.rglob("*.txt"))
    file.unlink()
    file.mkdir()  # neither readable nor writable as a file, for root too
    for _ in range(2):
        assert hint_model.hint(situation()).text == "Go right."
    assert caplog.text.count("hints are not recorded") == 1


def test_failures_of_the_chat_model_are_counted():
    environment = HintedEnvironment(corridor, ChatHintModel(FailingChat()))
    assert environment.reset(0).hint == ""
    assert environment.step(Reply("", actions=("Up",))).metrics["hint_failures"] == 1.0


def test_a_hint_that_times_out_is_a_failure_of_the_model():
    hint_model = ChatHintModel(SlowChat(), patience_s=0.05)
    assert HintedEnvironment(corridor, hint_model).reset(0).hint == ""
    with pytest.raises(ChatError, match=r"ChatHintModel got no reply within 0\.05 s"):
        hint_model.hint(situation())


def test_a_recorded_hint_is_read_back_unchanged(tmp_path: Path):
    said = "Go down.\r\nThen right.\rThen \u2603."
    received = [
        ChatHintModel(FixedChat(said), record=str(tmp_path)).hint(situation()).text
        for _ in range(2)
    ]
    assert received == [said, said]


def test_an_episode_that_is_played_again_gets_the_recorded_hints(tmp_path: Path):
    chat = FixedChat()
    hint_model = ChatHintModel(chat, record=str(tmp_path / "hints"))
    first = hint_model.hint(situation(turn=1))
    assert hint_model.replays
    later = FixedChat("Something else.")
    again = ChatHintModel(later, record=str(tmp_path / "hints"))
    assert again.hint(situation(turn=1)) == Hint(first.text)  # without tokens and cost
    assert later.prompts == []
    # The record is not used for another turn, another kind or another model.
    assert again.hint(situation(turn=2)).text == "Something else."
    assert again.hint(situation("explore", turn=1)).text == "Something else."
    later.identity = lambda: "another model"
    assert again.hint(situation(turn=1)).text == "Something else."


def test_a_failure_is_not_recorded(tmp_path: Path):
    with pytest.raises(ChatError):
        ChatHintModel(FailingChat(), record=str(tmp_path)).hint(situation())
    assert ChatHintModel(FixedChat(), record=str(tmp_path)).hint(situation()).text == "Go right."


def test_without_a_record_hints_do_not_replay():
    assert not ChatHintModel(FixedChat()).replays


def test_a_hint_model_can_be_pickled():
    hint_model = pickle.loads(pickle.dumps(ChatHintModel(FixedChat())))
    assert hint_model.hint(situation()).text == "Go right."
