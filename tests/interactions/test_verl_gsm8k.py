"""verl's `Gsm8kInteraction` under verl's name, as users of verl know it."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from tests.interactions.tables import SEED, environment, interaction, say, truth
from vagentrl.interactions import install_verl_shim
from vagentrl.interactions.registry import get_interaction_class

install_verl_shim()

from verl.interactions.base import BaseInteraction  # noqa: E402  # pyright: ignore
from verl.interactions.gsm8k_interaction import Gsm8kInteraction  # noqa: E402  # pyright: ignore

NAME = "verl.interactions.gsm8k_interaction.Gsm8kInteraction"
RIGHT = (True, "Your response is correct!", 1.0, {})
WRONG = "Your response is incorrect! You need to reflect on your answer and try again."


def answer(messages: list[dict[str, Any]], ground_truth: Any = "42") -> tuple[tuple, str]:
    """What the last message is answered, and the response that the table then holds."""
    one = Gsm8kInteraction({"name": "gsm8k"})

    async def play() -> tuple[tuple, str]:
        await one.start_interaction("x", ground_truth=ground_truth)
        answered = await one.generate_response("x", messages)
        return answered, one._instance_dict["x"]["response"]

    return asyncio.run(play())


def assistant(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "40 + 2?"}, {"role": "assistant", "content": content}]


def test_it_is_the_class_that_the_registry_finds():
    assert get_interaction_class(NAME) is Gsm8kInteraction
    assert isinstance(Gsm8kInteraction({}), BaseInteraction)
    assert Gsm8kInteraction({}).name == "interaction_agent"
    assert Gsm8kInteraction({"name": "sums"}).name == "sums"


@pytest.mark.parametrize("reply", ["42", "#### 42", "Forty and 2 make 42.", "7 #### 42"])
def test_the_last_number_decides(reply: str):
    answered, _ = answer(assistant(reply))
    assert answered == RIGHT


@pytest.mark.parametrize(
    ("messages", "response"),
    [
        (assistant("24"), "#### 24"),
        (assistant("#### 42 or 24"), "#### 42 or 24"),
        (assistant(""), "#### "),
        (assistant(None), "#### "),
        ([{"role": "user", "content": "42"}], "#### "),
        ([], "#### "),
        ([*assistant("42"), *assistant("7")], "#### 7"),
    ],
)
def test_anything_else_is_wrong(messages: list[dict[str, Any]], response: str):
    assert answer(messages) == ((False, WRONG, 0.0, {}), response)


def test_a_row_without_a_ground_truth_is_never_solved():
    assert answer(assistant("42"), None)[0] == (False, WRONG, 0.0, {})


def test_the_table_is_verls():
    one = Gsm8kInteraction({})

    async def play() -> None:
        first = await one.start_interaction(ground_truth="42")
        assert len(first) == 36
        await one.start_interaction("two")
        assert one._instance_dict == {
            first: {"response": "", "ground_truth": "42", "reward": 0.0},
            "two": {"response": "", "ground_truth": None, "reward": 0.0},
        }
        one._instance_dict["two"] |= {"response": "#### 7", "ground_truth": "7"}
        with patch("verl.utils.reward_score.gsm8k.compute_score", return_value=0.5) as scored:
            assert await one.calculate_score("two", other=1) == 0.5
        scored.assert_called_once_with(
            "#### 7", "7", method="flexible", format_score=0.0, score=1.0
        )
        await one.finalize_interaction("two", other=1)
        await one.finalize_interaction(first)
        assert one._instance_dict == {}
        with pytest.raises(KeyError):
            await one.finalize_interaction("two")

    asyncio.run(play())


def test_a_conversation_in_an_environment_leaves_nothing_behind():
    played = environment(NAME)
    played.reset(SEED)
    assert say(played, "no idea").observation.text == WRONG
    solved = say(played, f"It is {truth(played, SEED)}.")
    assert (solved.terminated, solved.reward, solved.metrics["success"]) == (True, 1.0, 1.0)
    assert interaction(played)._instance_dict == {}
