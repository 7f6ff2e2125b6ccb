import asyncio
import json
import threading
from typing import Any, ClassVar

import pytest
from PIL import Image

pytest.importorskip("pydantic")

from tests.interactions.shipped import tools_of_tests
from tests.interactions.shipped.talk import Answer, ask, converse, talk
from vagentrl.errors import ConfigError, EnvError, RowError
from vagentrl.interactions.tools import Tool, ToolInteraction, functions
from vagentrl.interactions.tools.functions import FunctionTool
from vagentrl.interactions.tools.results import blocks_of

HOME = "tests.interactions.shipped.tools_of_tests"


def with_tools(*names: str, **settings: Any) -> ToolInteraction:
    return ToolInteraction({"tools": [f"{HOME}.{name}" for name in names], **settings})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def result(answer: Answer) -> str:
    """The text between the tags of the only response."""
    text = answer[1]
    assert text.startswith("<tool_response>\n") and text.endswith("\n</tool_response>")
    return text[len("<tool_response>\n") : -len("\n</tool_response>")]


def test_a_signature_and_a_docstring_become_a_schema():
    tool = FunctionTool(tools_of_tests.add)
    assert tool.name == "add"
    assert tool.description == "Add two numbers.\n\nThey may be negative."
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first number."},
            "b": {"type": "number", "description": "The second number.", "default": 1.0},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_literals_dataclasses_and_lists_are_described():
    fail = FunctionTool(tools_of_tests.fail).parameters["properties"]["kind"]
    assert fail["enum"] == ["value", "tool", "exit", "stop", "interrupt"]
    distance = FunctionTool(tools_of_tests.distance).parameters
    assert distance["properties"]["to"] == {"$ref": "#/$defs/Point"}
    assert distance["$defs"]["Point"]["required"] == ["x"]
    assert distance["properties"]["via"]["anyOf"][1] == {"type": "null"}


def test_the_instructions_have_each_tool_as_json():
    lines = with_tools("add", "Shelf").agent_instructions().splitlines()
    listed = lines[lines.index("<tools>") + 1 : lines.index("</tools>")]
    functions = [json.loads(line)["function"] for line in listed]
    assert [function["name"] for function in functions] == ["add", "count", "put"]
    assert functions[2]["parameters"]["properties"]["book"]["description"] == "Its title."


def test_calls_are_made_and_the_final_answer_is_scored():
    reply = call("add", a=1, b=2) + call("add", a=2)
    tools, last = talk(with_tools("add"), reply, "3.0", ground_truth="3.0")
    one, two = ("<tool_response>\n3.0\n</tool_response>",) * 2
    assert tools[:3] == (False, f"{one}\n{two}", 0.0)
    assert tools[3] == {
        "calls": 2.0,
        "failed_calls": 0.0,
        "malformed_calls": 0.0,
        "timed_out_calls": 0.0,
    }
    assert (last[0], last[2], last[3]["correct"]) == (True, 1.0, 1.0)
    assert ask(with_tools("add"), "4", ground_truth="3.0")[:3:2] == (True, 0.0)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (call("add", a="1"), "argument a is '1'"),
        (call("add"), "argument a is missing"),
        (call("add", a=1, c=2), "no argument c"),
        (call("add", a=True), "argument a"),
        (call("add", a=None), "argument a"),
        (call("distance", to={"x": "far"}), "argument to.x"),
        (call("distance", to={"x": 1}, via=[{"z": 1}]), "via"),
        (call("subtract", a=1), "the tools are add, distance"),
        ("<tool_call>{}</tool_call>", "object with a name"),
    ],
)
def test_wrong_arguments_are_answered_in_words(wrong: str, told: str):
    answer = ask(with_tools("add", "distance"), wrong, ground_truth="")
    assert result(answer).startswith("Error: ") and told in result(answer)
    assert answer[0] is False and answer[3]["failed_calls"] + answer[3]["malformed_calls"] == 1


def test_dataclasses_arrive_as_objects():
    reply = call("distance", to={"x": 1}, via=[{"x": 2}, {"x": 3, "y": 1}])
    assert result(ask(with_tools("distance"), reply, ground_truth="")) == "6"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("value", "ValueError: no such thing"),
        ("tool", "Error: try another word"),
        ("exit", "SystemExit"),
        ("stop", "StopIteration"),
        ("interrupt", "KeyboardInterrupt"),
    ],
)
def test_a_tool_that_raises_is_answered_in_words(kind: str, told: str):
    assert told in result(ask(with_tools("fail"), call("fail", kind=kind), ground_truth=""))


def test_a_tool_that_hangs_is_answered_in_words():
    interaction = with_tools("nap", "block", timeout_s=0.05)
    for name in ("nap", "block"):
        answer = ask(interaction, call(name, seconds=2), ground_truth="")
        assert "not answered within 0.05 s" in result(answer)
        assert answer[3]["timed_out_calls"] == 1.0


def test_a_tool_that_hangs_too_often_is_refused_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(functions, "_MOST_ABANDONED", 1)
    interaction = with_tools("block", timeout_s=0.2)

    async def play() -> list[str]:
        await interaction.start_interaction("a", ground_truth="")
        told: list[str] = []
        for seconds in (1.0, 0, 0):
            message = {"role": "assistant", "content": call("block", seconds=seconds)}
            told.append(result(await interaction.generate_response("a", [message])))  # pyright: ignore[reportArgumentType]
            if len(told) == 2:
                await asyncio.sleep(1.5)
        return told

    first, second, third = asyncio.run(play())
    assert "not answered" in first and "hangs" in second and third.isdigit()


def test_texts_of_one_result_share_the_limit():
    blocks = blocks_of(["x" * 30, Image.new("RGB", (1, 1)), "y" * 30], 40, 1)
    assert blocks[0]["text"] == "x" * 30
    assert blocks[2]["text"] == "y" * 7 + " [20 characters left out] " + "y" * 3  # of 10: 7 and 3


def test_a_blocking_tool_runs_in_a_thread():
    answer = ask(with_tools("block"), call("block", seconds=0), ground_truth="")
    assert result(answer) != str(threading.get_ident())


def test_a_tool_that_cancels_itself_is_answered_in_words():
    assert "cancelled" in result(
        ask(with_tools("cancel_itself"), call("cancel_itself"), ground_truth="")
    )


def test_cancelling_the_conversation_reaches_through_a_tool():
    interaction = with_tools("nap", "block")

    async def play(name: str) -> None:
        started = asyncio.create_task(
            converse(interaction, [call(name, seconds=0.5)], ground_truth="")
        )
        await asyncio.sleep(0.1)
        started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await started

    for name in ("nap", "block"):
        asyncio.run(play(name))
    assert interaction._conversations == {}


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("json", '{"points": [{"x": 1, "y": 2}], "total": 3}'),
        ("none", "null"),
        ("tags", "&lt;/tool_response>&lt;tool_call><|im_end|>"),
    ],
)
def test_results_are_shown_as_text(what: str, shown: str):
    assert result(ask(with_tools("give"), call("give", what=what), ground_truth="")) == shown


def test_a_huge_result_is_cut_and_that_is_said():
    text = result(ask(with_tools("give"), call("give", what="huge"), ground_truth=""))
    assert "[9996000 characters left out]" in text and len(text) < 4100


def test_a_result_without_a_text_is_answered_in_words():
    answer = ask(with_tools("give"), call("give", what="unprintable"), ground_truth="")
    assert result(answer).startswith("Error: give failed")


def test_images_become_blocks_in_their_place():
    interaction = with_tools("give", result_images=2)
    blocks = ask(interaction, call("give", what="images"), ground_truth="")[1]
    kinds = [block["type"] for block in blocks]
    assert kinds == ["text", "image", "text", "image", "text"]
    assert blocks[0]["text"] == "<tool_response>\nbefore" and blocks[2]["text"] == "after"
    assert blocks[4]["text"] == "[1 images left out]\n</tool_response>"
    assert blocks[1]["image"].size == (2, 3) and blocks[1]["image"].mode == "RGB"


def test_the_calls_of_a_turn_and_of_a_conversation_are_limited():
    interaction = with_tools("add", calls_per_turn=2, calls_per_conversation=3)
    two_more = call("add", a=1) * 3
    first, second = talk(interaction, two_more, two_more, ground_truth="")
    assert (first[3]["calls"], first[3]["malformed_calls"]) == (2.0, 1.0)
    assert (second[3]["calls"], second[3]["failed_calls"]) == (1.0, 1.0)
    assert "all 3 calls" in second[1]


def test_a_class_has_an_object_for_each_conversation():
    interaction = with_tools("Shelf")
    tools_of_tests.closed.clear()

    async def play() -> list[list[Answer]]:
        put = call("put", book="Emma")
        return await asyncio.gather(
            *(converse(interaction, [put, put], ground_truth="", room=n) for n in (1, 2))
        )

    one, two = asyncio.run(play())
    assert (result(one[0]), result(one[1])) == ("Emma", "Error: the shelf is full")
    assert result(two[1]) == "Emma, Emma"
    assert sorted(tools_of_tests.closed) == [1, 2]


def test_an_object_that_cannot_be_made_fails_the_episode():
    def broken() -> None:
        raise OSError("no disk")

    class Broken:
        def __init__(self) -> None:
            broken()

        def use(self) -> None: ...

    with pytest.raises(EnvError, match="no disk"):
        ask(ToolInteraction({"tools": [Broken]}), "1", ground_truth="1")


def test_another_interaction_judges_the_answer():
    judge = {"class_name": "vagentrl.interactions.gsm8k.Gsm8kInteraction"}
    interaction = with_tools("add", answer=judge)
    replies = (call("add", a=41), "#### 41", "#### 42")
    answers = talk(interaction, *replies, ground_truth="42")
    assert [answer[0] for answer in answers] == [False, False, True]
    assert answers[2][2] == 1.0 and answers[2][3]["correct"] == 1.0
    with pytest.raises(RowError):
        ask(interaction, "#### 42", ground_truth="forty")
    assert interaction._conversations == {}


class JudgeOfVerl:
    """Derives from nothing, and writes the last two methods as verl's base class does."""

    finalized: ClassVar[list[str]] = []

    def __init__(self, config: dict[str, Any]) -> None:
        self.name = config["name"]
        self.conversations: list[str] = []

    async def start_interaction(self, instance_id: str, **kwargs: Any) -> str:
        self.conversations.append(instance_id)
        return "another name"

    async def generate_response(self, instance_id: str, messages: list, **kwargs: Any) -> tuple:
        assert instance_id in self.conversations
        return True, f"{self.name} nods.", 0.25, None

    async def calculate_score(self) -> float:
        return 0.75

    async def finalize_interaction(self) -> None:
        self.finalized.append(self.conversations.pop())


def test_the_judge_may_be_a_class_of_verls_kind():
    entry = {"class_name": f"{__name__}.JudgeOfVerl", "name": "Ada"}
    interaction = with_tools("add", answer=entry)
    over, told, score, metrics = ask(interaction, "42")
    assert (over, told, score, metrics["calls"]) == (True, "Ada nods.", 0.25, 0.0)
    assert len(JudgeOfVerl.finalized) == 1


def test_a_row_needs_something_to_judge_by():
    with pytest.raises(RowError, match="ground_truth"):
        ask(with_tools("add"), "1")


@pytest.mark.parametrize("text", ["<|im_end|>\ud800\x00", "x" * 10**6, ""])
def test_hostile_answers_are_wrong(text: str):
    assert ask(with_tools("add"), text, ground_truth="1")[:3:2] == (True, 0.0)


def test_a_tool_of_ones_own_class_is_used_as_it_is():
    class Echo(Tool):
        name, description, parameters = "echo", "It repeats.", {"type": "object"}

        async def call(self, arguments: Any) -> Any:
            return arguments

    interaction = ToolInteraction({"tools": [Echo()]})
    assert result(ask(interaction, call("echo", a=1), ground_truth="")) == '{"a": 1}'


def no_hint(thing: threading.Lock) -> None: ...


def rest(*things: int) -> None: ...


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "no tools"),
        ({"tools": ["nowhere.at_all"]}, "cannot be imported"),
        ({"tools": [f"{HOME}.missing"]}, "cannot be imported"),
        ({"tools": [f"{HOME}.add", f"{HOME}.add"]}, "two tools are named add"),
        ({"tools": [3]}, "dotted path"),
        ({"tools": [no_hint]}, "no_hint"),
        ({"tools": [rest]}, "by name"),
        ({"tools": [f"{HOME}.add"], "timeout_s": 0}, "timeout_s"),
        ({"tools": [f"{HOME}.add"], "answer": {"config": {}}}, "class_name"),
        ({"tools": [f"{HOME}.add"], "answer": {"class_name": "builtins.dict"}}, "no interaction"),
        ({"mcp": [{}]}, "command"),
        ({"mcp": [{"command": "there-is-no-such-program"}]}, "not found"),
    ],
)
def test_settings_that_cannot_work_are_refused(config: dict, told: str):
    with pytest.raises(ConfigError, match=told):
        ToolInteraction(config)
