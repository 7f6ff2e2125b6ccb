"""Who answers attempts at a problem."""

import asyncio
from random import Random
from typing import Any

import pytest

from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError, RowError
from vagentrl.interactions import BaseInteraction, InteractionEnvironment
from vagentrl_envs.arithmetic import ArithmeticInteraction, ArithmeticTasks
from vagentrl_envs.arithmetic.interaction import last_number


def talk(truth: Any, *replies: Any, **config: Any) -> list[tuple[bool, str, float, dict[str, Any]]]:
    """What each reply is answered."""
    interaction = ArithmeticInteraction({"name": "arithmetic", **config})

    async def play() -> list[tuple[bool, str, float, dict[str, Any]]]:
        kwargs = {"name": "arithmetic", "ground_truth": truth, "rung": 1, "problem": "?"}
        name = await interaction.start_interaction("one", **kwargs)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "What is it?"}]
        answers = []
        for reply in replies:
            messages.append({"role": "assistant", "content": reply})
            answers.append(await interaction.generate_response(name, messages, **kwargs))
            messages.append({"role": "user", "content": answers[-1][1]})
        assert await interaction.calculate_score(name) == (answers[-1][2] if answers else 0)
        await interaction.finalize_interaction(name)
        assert not interaction._problems
        return answers

    return asyncio.run(play())


def test_a_right_answer_at_once_scores_1():
    assert talk("8", "It is 8.") == [(True, "Right.", 1.0, {"right_at_first": 1.0})]


def test_a_wrong_answer_is_told_the_direction_and_a_right_one_then_scores_less():
    assert talk(8, "7", "I am sorry", "9", "8", attempts=None) == [
        (False, "Too low. Try again.", 0.0, {"right_at_first": 0.0}),
        (False, "That is not a number. Try again.", 0.0, {"right_after_feedback": 0.0}),
        (False, "Too high. Try again.", 0.0, {"right_after_feedback": 0.0}),
        (True, "Right.", 0.5, {"right_after_feedback": 1.0}),
    ]
    assert talk(8, "7", "8", after_feedback=0.25)[1][2] == 0.25


def test_the_conversation_ends_after_the_last_attempt():
    assert [over for over, *_ in talk(8, "1", "2", "3")] == [False, False, True]
    assert [over for over, *_ in talk(8, "1", attempts=1)] == [True]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8),
        ("It is 9-5=4.", 4),
        ("9-5", 5),
        ("-5", -5),
        ("−5", -5),
        ("30 - 35 = -5!", -5),
        ("1,234 or 1,234.50", 1234.5),
        ("first 3, then 4", 4),
        ("8.", 8),
        ("none", None),
        ("", None),
        ("9" * 1_000_000, None),
        ("<|im_end|>", None),
        ("nan inf ٣ ½", None),
    ],
)
def test_the_last_number_of_a_text_is_read(text: str, number: float | None):
    assert last_number(text) == number


def test_conversations_do_not_meet():
    interaction = ArithmeticInteraction({})

    async def play() -> list[str]:
        names = await asyncio.gather(
            *(interaction.start_interaction(ground_truth=truth) for truth in range(50))
        )
        said = [{"role": "assistant", "content": [{"type": "text", "text": "25"}]}]
        answers = await asyncio.gather(*(interaction.generate_response(n, said) for n in names))
        return [answer[1].split(".")[0] for answer in answers]

    assert asyncio.run(play()) == ["Too high"] * 25 + ["Right"] + ["Too low"] * 24


def test_a_conversation_without_a_reply_has_no_number():
    interaction = ArithmeticInteraction({})

    async def play() -> tuple[bool, str, float, dict[str, Any]]:
        await interaction.start_interaction("one", ground_truth=1)
        return await interaction.generate_response("one", [{"role": "user", "content": "1"}])

    assert asyncio.run(play())[1] == "That is not a number. Try again."


@pytest.mark.parametrize("truth", [None, True, "none", "", [], "9" * 100])
def test_a_row_without_a_number_is_refused(truth: Any):
    with pytest.raises(RowError, match="ground_truth is"):
        talk(truth)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tries": 3}, "no setting tries; its settings are attempts, after_feedback"),
        ({"attempts": 0}, "attempts is 0"),
        ({"attempts": True}, "attempts of ArithmeticInteraction is True"),
        ({"after_feedback": 1.5}, "after_feedback is 1.5"),
        ({"after_feedback": "half"}, "after_feedback of ArithmeticInteraction is 'half'"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(config: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ArithmeticInteraction(config)


def test_the_oracle_is_right_and_random_replies_are_numbers():
    environment = InteractionEnvironment(
        ArithmeticTasks(rungs=[1, 2]), "vagentrl_envs.arithmetic.ArithmeticInteraction"
    )
    assert environment.random_actions(Random(1)) is None  # no episode has begun
    for index in range(5):
        environment.reset(seed_of("train", index))
        best, drawn = environment.oracle(), environment.random_actions(Random(index))
        assert drawn == environment.random_actions(Random(index)) and drawn[0].isdigit()
        result = environment.step(environment.format.parse(environment.format.write(best)))
        assert (result.reward, result.terminated) == (1.0, True)
    environment.close()


def test_an_interaction_of_the_users_need_not_know_any_reply():
    environment = InteractionEnvironment(
        ArithmeticTasks(rungs=[1]), BaseInteraction({"name": "arithmetic"})
    )
    environment.reset(seed_of("train", 0))
    assert environment.oracle() is None and environment.random_actions(Random(1)) is None
    environment.close()
