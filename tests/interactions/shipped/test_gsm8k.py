import asyncio
from decimal import Decimal

import pytest

from tests.interactions.shipped.talk import ask, converse, talk
from vagentrl.errors import ConfigError, RowError
from vagentrl.interactions.gsm8k import Gsm8kInteraction, compute_score, read_number


def test_strict_takes_the_last_number_after_the_mark():
    assert compute_score("#### 5\nNo.\n#### 42 and then 7", "42") == 1.0
    assert compute_score("The answer is 42", "42") == 0.0


def test_flexible_takes_the_last_number_of_all():
    assert compute_score("First 5, then 42 apples.", "42", "flexible") == 1.0
    assert compute_score("#### 42, not 5", "42", "flexible") == 0.0


def test_a_wrong_number_earns_the_format_score_and_no_number_earns_nothing():
    assert compute_score("#### 41", "42", format_score=0.1) == 0.1
    assert compute_score("#### forty-two", "42", format_score=0.1) == 0.0
    assert compute_score("#### 42", "42", score=3.0) == 3.0


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1,234", "1234"),
        ("$18", "18"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("42.0", "42"),
        ("42.", "42"),
        ("−7", "-7"),
        (".5", "0.5"),
        ("007", "7"),
        ("-0", "0"),
    ],
)
def test_numbers_are_compared_by_value(written: str, value: str):
    assert compute_score(f"#### {written}", value) == 1.0
    assert compute_score(f"It is {written}", value, "flexible") == 1.0


def test_numbers_beyond_the_precision_of_a_float_are_told_apart():
    assert compute_score("#### 10000000000000001", "10000000000000000") == 0.0


@pytest.mark.parametrize("text", ["", ".", "-", "nan", "inf", "1e99999999", "1/2", "x", "9" * 101])
def test_what_is_no_number_has_no_value(text: str):
    value = read_number(text)
    assert value is None or value == Decimal("1e99999999")


@pytest.mark.parametrize(
    "unit", ["9", "#### ", "-$", "$", "1,", ".", "#### 9", "<|im_end|>", "\ud800", "\x00"]
)
def test_a_megabyte_is_judged_like_any_reply(unit: str):
    reply = unit * (10**6 // len(unit))
    done, _, score, _ = ask(Gsm8kInteraction({}), reply, ground_truth="42")
    assert (done, score) == (False, 0.0)
    assert compute_score(f"{reply} x #### 42", "42") == 1.0


def test_feedback_leads_to_the_right_answer():
    answers = talk(Gsm8kInteraction({}), "It is 42", "#### 41", "#### 42", ground_truth="42")
    assert [answer[0] for answer in answers] == [False, False, True]
    assert [answer[2] for answer in answers] == [0.0, 0.0, 1.0]
    assert "'#### '" in answers[0][1] and "mistake" in answers[1][1]
    assert answers[2][3] == {"correct": 1.0, "answered": 1.0}


def test_a_bare_number_is_no_strict_answer():
    assert ask(Gsm8kInteraction({}), "42", ground_truth="42")[2] == 0.0


def test_the_score_is_that_of_the_last_reply():
    async def play() -> list[float]:
        interaction = Gsm8kInteraction({"format_score": 0.2})
        name = await interaction.start_interaction("a", ground_truth=42)
        scores = [await interaction.calculate_score(name)]
        for reply in ("#### 41", "#### 42"):
            messages = [{"role": "assistant", "content": [{"type": "text", "text": reply}]}]
            await interaction.generate_response(name, messages)
            scores.append(await interaction.calculate_score(name))
        await interaction.finalize_interaction(name)
        await interaction.finalize_interaction(name)  # twice does no harm
        return scores

    assert asyncio.run(play()) == [0.0, 0.2, 1.0]


def test_conversations_at_once_do_not_mix():
    interaction = Gsm8kInteraction({})

    async def play() -> list[float]:
        answers = await asyncio.gather(
            *(converse(interaction, [f"#### {n // 2 * 2}"], ground_truth=n) for n in range(200))
        )
        return [answer[0][2] for answer in answers]

    assert asyncio.run(play()) == [1.0, 0.0] * 100  # even numbers are right, odd ones are not


@pytest.mark.parametrize("truth", [None, "", "forty", True, float("nan"), [42]])
def test_a_row_without_a_number_is_refused(truth: object):
    with pytest.raises(RowError, match="ground_truth"):
        ask(Gsm8kInteraction({}), "#### 42", ground_truth=truth)


def test_the_ground_truth_may_be_a_whole_solution():
    assert ask(Gsm8kInteraction({}), "#### 42", ground_truth="6*7=42\n#### 42")[2] == 1.0


@pytest.mark.parametrize(
    "config", [{"method": "loose"}, {"scoer": 1}, {"score": "a"}, {"score": 1, "format_score": 1}]
)
def test_settings_that_cannot_work_are_refused(config: dict):
    with pytest.raises(ConfigError):
        Gsm8kInteraction(config)
