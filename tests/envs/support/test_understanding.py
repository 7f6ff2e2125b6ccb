"""What the scripted customer understands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagentrl_envs.support.oracle import say
from vagentrl_envs.support.phone import ACTIONS
from vagentrl_envs.support.understanding import LONGEST, Heard, Offer, understand


@pytest.mark.parametrize("command", list(ACTIONS))
def test_every_action_is_understood_as_command_and_as_sentence(command: str):
    action = ACTIONS[command]
    for text in (command, action.sentence, action.sentence.upper(), f"Hello! {command}."):
        assert understand(text).commands == (command,), text
    assert say(command) == f"say[{command}]"


@pytest.mark.parametrize(
    ("message", "commands"),
    [
        (
            "Could you turn off airplane mode and then restart your phone?",
            ("airplane off", "restart"),
        ),
        ("Turn airplane mode on, then off.", ("airplane on", "airplane off")),
        ("Switch data roaming off, and enable mobile data", ("roaming off", "data on")),
        ("Turn your phone off and back on again", ("restart",)),
        ("Make sure that Wi-Fi is off.", ("wifi off",)),
        ("Please take the SIM card out and put it back", ("sim reseat",)),
        ("Disable the data saver", ("saver off",)),
        ("Pay the request, please", ("pay",)),
        ("Please don't turn airplane mode on", ()),
        ("Never restart it. Disable the VPN!", ("vpn off",)),
        ("Is airplane mode on?", ()),
        ("Please check whether mobile data is off", ()),
        ("It is unpaid", ()),
        ("\uff36\uff30\uff2e off", ("vpn off",)),  # full-width letters
    ],
)
def test_instructions_are_told_from_questions_and_prohibitions(message: str, commands: tuple):
    assert understand(message).commands == commands


@pytest.mark.parametrize(
    ("message", "topics"),
    [
        ("Is airplane mode on?", ("airplane",)),
        ("Which settings does your phone show?", ("settings",)),
        ("What is your phone number and your PIN?", ("number", "pin")),
        ("Are you abroad?", ("place",)),
        ("Does data work now?", ("screen",)),
        ("How can I help you?", ("wish",)),
        ("Which top-up would you like?", ("top-up",)),
        ("Is the SIM card in place?", ("sim",)),
    ],
)
def test_questions_have_topics(message: str, topics: tuple):
    assert understand(message).topics == topics


@pytest.mark.parametrize(
    ("message", "offer"),
    [
        ("Plan L costs $31 a month. Agreed?", Offer("plan:L", True)),
        ("Would you like the XL plan for 30 dollars?", Offer("plan:XL", False)),
        ("5 GB 13, ok?", Offer("gb:5", True)),
        ("Shall I book 5 GB?", Offer("gb:5", False)),
        ("Plan L costs $31.", None),
    ],
)
def test_an_offer_needs_a_question_and_its_true_price(message: str, offer: Offer | None):
    assert understand(message).offer == offer


def test_what_is_told_is_found():
    assert understand("You get $24 back.").told == {"24"}
    assert understand("Not possible until 2026-09").told == {"no", "2026-09"}
    assert understand("The bill is 124.").told == {"124"}  # and not 24


def test_too_many_numbers_tell_nothing():
    assert understand("1 2 3 4").told == {"1", "2", "3", "4"}
    assert understand("1 2 3 4 5") == Heard(overloaded=True)


def test_only_the_beginning_is_taken_in():
    assert understand("x" * LONGEST + " restart").nothing
    assert understand("x" * (LONGEST - 8) + " restart").commands == ("restart",)


def test_gibberish_is_not_understood_and_politeness_is():
    assert understand("").nothing and understand("fnord").nothing
    assert not understand("Thank you!").nothing


@given(st.text())
def test_any_text_can_be_heard(text: str):
    assert len(understand(text).commands) <= len(ACTIONS) + 1
