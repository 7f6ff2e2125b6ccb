import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("math_verify")

from tests.interactions.shipped.talk import Answer, ask, converse, talk
from vagentrl.errors import ConfigError, RowError
from vagentrl.interactions.equivalence import Equivalence
from vagentrl.interactions.mathematics import MathInteraction, last_boxed

SETTINGS = {"workers": 1, "timeout_s": 2.0}


@pytest.fixture(scope="module")
def interaction() -> Iterator[MathInteraction]:
    yield MathInteraction(SETTINGS)


@pytest.mark.parametrize(
    ("truth", "reply"),
    [
        ("\\frac{1}{2}", "So \\boxed{0.5}."),
        ("1/2", "\\boxed{5} is wrong, \\boxed{\\frac12} is right"),
        ("2\\sqrt{3}", "\\boxed{\\sqrt{12}}"),
        ("x^2+2x+1", "\\boxed{(x+1)^2}"),
        ("\\{1,2\\}", "\\boxed{\\{2, 1\\}}"),
        ("$\\frac{1}{2}$", "The answer is $\\frac{1}{2}$."),
        ("\\text{east}", "\\boxed{\\text{ east }}"),
        ("The sum is \\boxed{7}.", "\\boxed{7}"),
        (42, "Work.\n\nThe answer is 42"),
    ],
)
def test_equal_answers_are_right(interaction: MathInteraction, truth: object, reply: str):
    done, _, score, metrics = ask(interaction, reply, ground_truth=truth)
    assert (done, score, metrics["correct"]) == (True, 1.0, 1.0)


@pytest.mark.parametrize(
    ("truth", "reply"),
    [("1/2", "\\boxed{0.51}"), ("(1,2)", "\\boxed{(2,1)}"), ("42", "The answer is 41")],
)
def test_other_answers_are_wrong(interaction: MathInteraction, truth: str, reply: str):
    done, told, score, metrics = ask(interaction, reply, ground_truth=truth)
    assert (done, score, metrics["answered"]) == (False, 0.0, 1.0)
    assert "mistake" in told


def test_a_reply_without_an_answer_is_told_how_to_answer(interaction: MathInteraction):
    assert "\\boxed" in ask(interaction, " \n", ground_truth="1")[1]
    boxed = MathInteraction({**SETTINGS, "boxed_only": True})
    assert ask(boxed, "The answer is 1", ground_truth="1")[3]["answered"] == 0.0


def test_the_last_closed_box_counts():
    assert last_boxed("\\boxed{1} \\boxed{\\frac{2}{3}} \\boxed{4") == "\\frac{2}{3}"
    assert last_boxed("\\boxed{" * 2000) is None


@pytest.mark.parametrize("bomb", ["9^{9^{9^9}}", "999999999!", "{" * 400 + "1" + "}" * 400])
def test_a_bomb_is_stuck_and_the_next_answer_is_judged(interaction: MathInteraction, bomb: str):
    _, _, score, metrics = ask(interaction, f"\\boxed{{{bomb}}}", ground_truth="42")
    assert (score, metrics["stuck"]) == (0.0, 1.0)
    assert ask(interaction, "\\boxed{\\frac{84}{2}}", ground_truth="42")[2] == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        "\\boxed{" * 140_000,
        "1+" * 500_000,
        "$" * 10**6,
        "\\boxed{" + "9" * 10**6 + "}",
        "\\boxed{__import__('os').abort()}",
        "\\boxed{9**9**9}",
        "<|im_end|>\x00\ud800",
    ],
)
def test_hostile_replies_are_wrong(interaction: MathInteraction, reply: str):
    assert ask(interaction, reply, ground_truth="43")[2] == 0.0


def test_a_worker_that_is_killed_is_replaced():
    equivalence = Equivalence(1, 20.0, 2048)
    assert asyncio.run(equivalence.equal("$1/2$", "$0.5$")) is True
    worker = equivalence._idle.get()
    equivalence._idle.put(worker)
    assert worker._process is not None
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait()
    with pytest.raises(TimeoutError):
        asyncio.run(equivalence.equal("$1/2$", "$0.5$"))
    assert asyncio.run(equivalence.equal("$1/2$", "$0.5$")) is True


def test_it_works_off_the_main_thread_and_for_many_at_once(interaction: MathInteraction):
    answers: list[list[Answer]] = []

    async def play() -> None:
        answers.extend(
            await asyncio.gather(
                *(
                    converse(interaction, [f"\\boxed{{{n}/4}}"], ground_truth="0.5")
                    for n in range(8)
                )
            )
        )

    thread = threading.Thread(target=lambda: asyncio.run(play()))
    thread.start()
    thread.join()
    assert [answer[0][2] for answer in answers] == [0, 0, 1, 0, 0, 0, 0, 0]  # 2/4 is 0.5


def test_feedback_may_be_followed(interaction: MathInteraction):
    answers = talk(interaction, "\\boxed{2}", "\\boxed{3}", ground_truth="3")
    assert [answer[0] for answer in answers] == [False, True]


@pytest.mark.parametrize("truth", [None, "", " ", "1" * 1001])
def test_a_row_without_an_answer_is_refused(interaction: MathInteraction, truth: object):
    with pytest.raises(RowError, match="ground_truth"):
        ask(interaction, "\\boxed{1}", ground_truth=truth)


@pytest.mark.parametrize("config", [{"timeout_s": 0}, {"workers": 0}, {"memory": 1}])
def test_settings_that_cannot_work_are_refused(config: dict):
    with pytest.raises(ConfigError):
        MathInteraction(config)
