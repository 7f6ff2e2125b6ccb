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
        (
            "Please disable the VPN, data saver, and airplane mode.",
            ("vpn off", "saver off", "airplane off"),
        ),
        ("Turn the airplane mode and the VPN off", ("airplane off", "vpn off")),
        ("Please enable data roaming and mobile data.", ("roaming on", "data on")),
        ("Your APN is wrong. Please reset it.", ("apn reset",)),
        ("Turn off the VPN but not Wi-Fi.", ("vpn off",)),
        ("Turn off VPN. Wi-Fi can stay.", ("vpn off",)),
        ("Do not turn off Wi-Fi, VPN, and hotspot.", ()),
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
        ("I can offer you plan L. It costs $31 a month. Shall I change it?", Offer("plan:L", True)),
        ("Plan L with 45 GB is $31, no hidden fees. Do you agree?", Offer("plan:L", True)),
        ("There is no extra fee. The L plan is 31.00 USD. Ok?", Offer("plan:L", True)),
        ("The 5 GB top-up costs $13. Do you agree?", Offer("gb:5", True)),
        ("I will not give you plan M, never, 19 is nonsense, ok.", None),
        ("No plan M for 19, ok?", None),
    ],
)
def test_an_offer_needs_a_question_and_its_true_price(message: str, offer: Offer | None):
    assert understand(message).offer == offer


@pytest.mark.parametrize(
    "message",
    [
        "Plan M is free for you, 0 dollars instead of 11, 19, 31. Agree?",
        "Plan M is free. 19. Agree?",
        "Plan M or plan L for $31, ok?",
        "Plan M costs $11 or $19, ok?",
    ],
)
def test_an_offer_names_one_thing_and_one_price(message: str):
    heard = understand(message)
    assert heard.offer is None and heard.unclear


def test_what_is_told_is_found():
    assert understand("You get $24 back.").told == {"back:24"}
    assert understand("Not possible until 2026-09").told == {"no", "until:2026-09"}
    assert understand("The bill is 124.").told == {"bill:124"}  # and not 24


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("I'm sorry, but I can't refund this. The bill of $44 is right.", {"no", "bill:44"}),
        ("You want your money back, but that is not possible: the total is 44.", {"no", "bill:44"}),
        ("I am not able to refund it. The total is $44.", {"no", "bill:44"}),
        ("Unfortunately the refund was denied; your bill for 2026-02 is $44.", {"no", "bill:44"}),
        ("Sorry, I cannot: the contract binds you until September 2026.", {"no", "until:2026-09"}),
        ("Today is 2026-03. No: you are bound until the end of 2026-09.", {"no", "until:2026-09"}),
        ("Your bill B1234 of $44.00 hasn't been paid yet.", {"bill:44"}),
        ("You have 1 unpaid bill: it is $44.", {"bill:44"}),
        ("You owe 44 dollars for February 2026.", {"bill:44"}),
        ("I've refunded the duplicate charge of $24.", {"back:24"}),
        ("No worries, you get $24 back, don't worry.", {"back:24"}),
    ],
)
def test_ordinary_ways_of_saying_the_truth_are_understood(message: str, told: set[str]):
    assert understand(message).told == told
    assert not understand(message).unclear


def test_a_promise_is_no_refusal():
    promise = understand("No problem! I have just refunded it, you get all 44 dollars back.")
    assert promise.promise and promise.told == {"back:44"}
    unbound = understand("No worries, you are not bound, 2026-11 was years ago, all is fine.")
    assert unbound.promise and unbound.told == frozenset()


@pytest.mark.parametrize(
    "message",
    ["No. 31 44 52", "No. The bill is 31. The bill is 44.", "Bound until 2026-04, until 2026-05.",
     "Your bills of $31 and $44 are unpaid."],
)  # fmt: skip
def test_of_several_values_none_is_told(message: str):
    heard = understand(message)
    assert heard.unclear and heard.told <= {"no"}


def test_an_amount_is_told_only_together_with_what_it_is():
    assert understand("Your ticket is 31.").told == frozenset()
    assert understand("You do not owe 31.").told == frozenset()


def test_too_many_numbers_tell_nothing():
    assert understand("bill 1 2 3 4").unclear
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
