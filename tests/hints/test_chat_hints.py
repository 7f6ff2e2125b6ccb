import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

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


class Parrot(ChatModel):
    """Says what it was made to say, and remembers what it was asked."""

    def __init__(self, text: str = "  Go right.\n") -> None:
        self.text = text
        self.prompts: list[str] = []
        self.loops: set[int] = set()

    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        self.prompts.append(prompt)
        self.loops.add(id(asyncio.get_running_loop()))
        return ChatReply(self.text, 40, 3, 0.001)

    def identity(self) -> str:
        return "parrot"


class Crowd(Parrot):
    """Answers nobody before so many have asked."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        reply = await super().complete(prompt)
        async with asyncio.timeout(20):
            while len(self.prompts) < self.size:
                await asyncio.sleep(0.005)
        return reply


class Slow(Parrot):
    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        await asyncio.sleep(60)
        return ChatReply("too late")


class Deaf(Parrot):
    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        raise ChatError("connection refused")


def situation(kind: HintKind = "exploit", turn: int = 1) -> Situation:
    environment = corridor()
    environment.reset(0)
    past = (Exchange(Observation("P__G", hint="Hint: Wait."), Reply("I go {left}.")),)
    return Situation(kind, environment, past, Observation("P__G now"), (2, 3, turn))


@pytest.mark.parametrize("kind", ["exploit", "explore"])
def test_the_model_is_told_the_task_the_past_and_the_present(kind: HintKind):
    parrot = Parrot()
    hint = ChatHintModel(parrot).hint(situation(kind))
    assert (hint.text, hint.prompt_tokens, hint.reply_tokens, hint.cost) == (
        "Go right.", 40, 3, 0.001
    )  # fmt: skip
    [prompt] = parrot.prompts
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


def test_the_two_kinds_are_asked_for_in_different_words():
    hint_model = ChatHintModel(Parrot())
    assert hint_model.prompt(situation("exploit")) != hint_model.prompt(situation("explore"))


def test_templates_can_be_replaced_and_may_name_the_state(tmp_path: Path):
    path = tmp_path / "mine.txt"
    path.write_text("{{json}} {task} | {observation} | {state}")
    hint_model = ChatHintModel(Parrot(), explore_template=str(path))
    task, state = corridor().system_prompt(), situation().environment.state()
    assert state is not None
    assert (
        hint_model.prompt(situation("explore")) == f"{{json}} {task} | P__G now | {state.natural}"
    )
    assert "You coach" in hint_model.prompt(situation("exploit"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{task} {observation} {score}", r"the unknown \['score'\]"),
        ("{task}", r"lacks \['observation'\]"),
        ("{task} {observation} {", "double a brace"),
        ('{task} {observation} {"action": 1}', "unknown"),
        ("{task} {observation} {}", "unknown"),
    ],
)
def test_a_template_with_wrong_placeholders_is_refused(text: str, message: str, tmp_path: Path):
    path = tmp_path / "wrong.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        ChatHintModel(Parrot(), exploit_template=str(path))


def test_a_template_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"'nowhere\.txt' cannot be read"):
        ChatHintModel(Parrot(), exploit_template="nowhere.txt")


def test_all_environments_ask_at_once_in_one_event_loop():
    crowd = Crowd(64)
    hint_model = ChatHintModel(crowd)
    environments = [HintedEnvironment(corridor, hint_model) for _ in range(64)]
    with ThreadPoolExecutor(64) as threads:
        shown = list(threads.map(lambda environment: environment.reset(0).hint, environments))
    assert shown == ["Hint: Go right."] * 64
    assert len(crowd.loops) == 1
    assert HintedEnvironment(corridor, hint_model).reset(2).hint == "Hint: Go right."
    assert len(crowd.loops) == 1


def test_patience_is_more_than_none():
    with pytest.raises(ConfigError, match=r"patience_s is 0; give more than 0"):
        ChatHintModel(Parrot(), patience_s=0)


def test_an_empty_hint_is_a_failure():
    with pytest.raises(ChatError, match="an empty hint"):
        ChatHintModel(Parrot(" \n")).hint(situation())


def test_what_the_model_raises_is_counted():
    environment = HintedEnvironment(corridor, ChatHintModel(Deaf()))
    assert environment.reset(0).hint == ""
    assert environment.step(Reply("", actions=("Up",))).metrics["hint_failures"] == 1.0


def test_a_hint_that_takes_too_long_is_a_failure_of_the_model():
    hint_model = ChatHintModel(Slow(), patience_s=0.05)
    assert HintedEnvironment(corridor, hint_model).reset(0).hint == ""
    with pytest.raises(ChatError, match=r"no hint within 0\.05 s"):
        hint_model.hint(situation())


def test_a_hint_is_recorded_to_the_letter(tmp_path: Path):
    said = "Go down.\r\nThen right.\rThen \u2603."
    heard = [
        ChatHintModel(Parrot(said), record=str(tmp_path)).hint(situation()).text for _ in range(2)
    ]
    assert heard == [said, said]


def test_an_episode_that_is_played_again_gets_the_hints_of_the_record(tmp_path: Path):
    parrot = Parrot()
    hint_model = ChatHintModel(parrot, record=str(tmp_path / "hints"))
    first = hint_model.hint(situation(turn=1))
    assert hint_model.replays
    later = Parrot("Something else.")
    again = ChatHintModel(later, record=str(tmp_path / "hints"))
    assert again.hint(situation(turn=1)) == Hint(first.text)  # and no tokens, no cost
    assert later.prompts == []
    # another turn, another kind, another model: another hint
    assert again.hint(situation(turn=2)).text == "Something else."
    assert again.hint(situation("explore", turn=1)).text == "Something else."
    later.identity = lambda: "another parrot"
    assert again.hint(situation(turn=1)).text == "Something else."


def test_a_model_that_failed_is_asked_again(tmp_path: Path):
    with pytest.raises(ChatError):
        ChatHintModel(Deaf(), record=str(tmp_path)).hint(situation())
    assert ChatHintModel(Parrot(), record=str(tmp_path)).hint(situation()).text == "Go right."


def test_without_a_record_an_episode_cannot_be_played_again():
    assert not ChatHintModel(Parrot()).replays


def test_it_can_be_sent_to_a_process():
    hint_model = pickle.loads(pickle.dumps(ChatHintModel(Parrot())))
    assert hint_model.hint(situation()).text == "Go right."
