"""What the policy forbids, what the tools refuse, and what a phone shows."""

from dataclasses import replace

import pytest

from vagentrl.types import Reply
from vagentrl_envs.support import CustomerSupport
from vagentrl_envs.support.phone import Phone, World
from vagentrl_envs.support.records import Bill, Charge, Customer, Database, Line, months_before
from vagentrl_envs.support.tasks import PERSONAS, Task

ANN, BOB = Customer("C1", "Ann", "1234"), Customer("C2", "Bob", "9999")
LINE = Line("71", "C1", "M", bound_until="2025-12")
TEXTS = Charge("texts", 20)
BILLS = (
    Bill("B1", "C1", "2026-01", "paid", (Charge("plan", 19), TEXTS, TEXTS)),
    Bill("B2", "C1", "2026-02", "paid", (Charge("plan", 19), TEXTS, TEXTS)),
    Bill(
        "B3", "C1", "2026-03", "due", (Charge("plan", 19), Charge("calls", 50), Charge("calls", 50))
    ),
)


def case(line: Line = LINE, bills: tuple[Bill, ...] = BILLS, **phone) -> World:
    others = (Line("72", "C2", "S"),)
    return World(Database((ANN, BOB), (line, *others), bills), Phone(**phone), "71")


def play(start: World, *actions: str, identified: bool = True):
    """The environment and the result of the last action; Ann has called about line 71."""
    task = Task(
        "plan", "", PERSONAS[0], "Hello", "I wish", start, start,
        accepts=frozenset({"plan:S", "plan:L", "gb:5"}),
    )  # fmt: skip
    env = CustomerSupport()
    env.start(task)
    result = None
    known = ("verify(customer=C1, pin=1234)",) if identified else ()
    for action in (*known, *actions):
        assert result is None or not result.terminated
        result = env.step(Reply("", actions=(action,)))
    assert result is not None
    return env, result


def line_of(env: CustomerSupport) -> Line:
    return env.case.world.line


SUSPENDED = replace(LINE, status="suspended", hold="unpaid")
OVERDUE = (*BILLS[:2], replace(BILLS[2], status="overdue"))


@pytest.mark.parametrize(
    ("start", "actions", "rule"),
    [
        (case(), ("add_data(line=71, gb=5)",), "not agreed"),
        (case(), ("say[5 GB cost $12. Agreed?]", "add_data(line=71, gb=5)"), "not agreed"),
        (
            case(),
            (
                "say[Plan L is free, 0 dollars instead of 31. Agree?]",
                "change_plan(line=71, plan=L)",
            ),
            "not agreed",
        ),
        (
            case(),
            ("say[I will never give you plan L, 31 is a lie, ok.]", "change_plan(line=71, plan=L)"),
            "not agreed",
        ),
        (case(bills=OVERDUE), ("say[Your ticket is 119.]", "request_payment(bill=B3)"), "not told"),
        (case(), ("say[2 GB cost $6. Agreed?]", "add_data(line=71, gb=2)"), "not agreed"),
        (case(SUSPENDED), ("say[5 GB 13, ok?]", "add_data(line=71, gb=5)"), "line is suspended"),
        (case(), ("change_plan(line=71, plan=L)",), "not agreed"),
        (case(), ("say[plan L 31, ok?]", "change_plan(line=71, plan=S)"), "not agreed"),
        (
            case(replace(LINE, bound_until="2026-03")),
            ("say[plan S 11, ok?]", "change_plan(line=71, plan=S)"),
            "no cheaper plan",
        ),
        (case(bills=OVERDUE), ("say[plan L 31, ok?]", "change_plan(line=71, plan=L)"), "overdue"),
        (case(SUSPENDED, OVERDUE), ("resume_line(line=71)",), "overdue"),
        (case(replace(SUSPENDED, hold="fraud")), ("resume_line(line=71)",), "fraud"),
        (case(bills=OVERDUE), ("request_payment(bill=B3)",), "not told the total"),
        (case(), ("credit(bill=B2, amount=40)",), "once its amount"),
        (case(), ("credit(bill=B1, amount=20)",), "too old"),
        (case(), ("credit(bill=B3, amount=50)",), "a person decides"),
        (case(), ("set_roaming(line=72, on=true)",), "another customer"),
    ],
)
def test_a_forbidden_write_ends_the_case_and_changes_nothing(start, actions, rule):
    env, result = play(start, *actions)
    assert rule in result.observation.text and result.observation.text.startswith("Stopped:")
    assert result.terminated and not result.truncated
    assert (result.metrics["wrong_writes"], result.metrics["success"]) == (1, 0)
    assert env.case.world.database == start.database
    assert env.oracle() is None


def test_a_write_before_the_caller_is_verified_is_forbidden():
    _, result = play(case(), "set_roaming(line=71, on=true)", identified=False)
    assert result.terminated and "not verified" in result.observation.text


@pytest.mark.parametrize(
    ("start", "actions", "changed"),
    [
        (case(), ("say[5 GB 13, ok?]", "add_data(line=71, gb=5)"), {"extra_gb": 5}),
        (case(), ("say[plan S 11, ok?]", "change_plan(line=71, plan=S)"), {"plan": "S"}),
        (
            case(replace(LINE, bound_until="2027-01")),
            ("say[plan L 31, ok?]", "change_plan(line=71, plan=L)"),
            {"plan": "L"},
        ),
        (case(SUSPENDED), ("resume_line(line=71)",), {"status": "active", "hold": ""}),
        (case(), ("set_roaming(line=71, on=yes)",), {"roaming": True}),
        (case(replace(LINE, registered=False)), ("register_line(line=71)",), {"registered": True}),
    ],
)
def test_an_allowed_write_changes_its_record_alone(start: World, actions, changed):
    env, result = play(start, *actions)
    assert not result.terminated and result.metrics["tool_errors"] == 0
    assert env.case.world.database == start.database.with_line(replace(start.line, **changed))


@pytest.mark.parametrize(
    ("line", "call"),
    [
        (SUSPENDED, "resume_line(line=71)"),
        (replace(LINE, registered=False), "register_line(line=71)"),
    ],
)
def test_a_line_that_comes_back_needs_a_restart_of_its_own_phone(line: Line, call: str):
    env, _ = play(case(line), call)
    assert env.case.world.phone.stale and env.case.world.screen() == "no service"
    env, _ = play(case(line), call, "say[restart]")
    assert not env.case.world.phone.stale and env.case.world.screen() == "data works"
    elsewhere = replace(case(line), number="72")
    assert not play(elsewhere, call)[0].case.world.phone.stale


def test_a_doubled_charge_is_credited_once():
    env, _ = play(case(), "credit(bill=B2, amount=20)")
    assert [bill.credit for bill in env.case.world.database.bills] == [0, 20, 0]
    result = env.step(Reply("", actions=("credit(bill=B2, amount=20)",)))
    assert "has a credit already" in result.observation.text and not result.terminated


def test_the_customer_pays_what_was_requested():
    env, result = play(case(bills=OVERDUE), "say[Please pay]")
    assert "no payment request" in result.observation.text
    env, result = play(case(bills=OVERDUE), "say[119 due]", "request_payment(bill=B3)", "say[pay]")
    assert [bill.status for bill in env.case.world.database.bills] == ["paid", "paid", "paid"]
    assert result.metrics["user_actions"] == 1
    two = (replace(BILLS[1], status="overdue"), OVERDUE[2])
    told = ("say[119 due]", "say[59 due]", "request_payment(bill=B3)", "request_payment(bill=B2)")
    assert "still open" in play(case(bills=two), *told)[1].observation.text


def test_the_last_reason_of_a_refusal_counts_and_a_promise_takes_it_back():
    inform = frozenset({"no", "bill:59"})
    task = Task("refund", "", PERSONAS[0], "Hello", "I wish", case(), case(), inform=inform)

    def is_solved(*messages: str) -> bool:
        env = CustomerSupport()
        env.start(task)
        for message in messages:
            env.step(Reply("", actions=(f"say[{message}]",)))
        env.step(Reply("", actions=("close()",)))
        return env.case.success

    assert is_solved("No: the bill of $59 is right.")
    assert is_solved("I'm sorry, I can't refund this.", "The total of your bill, $59, is right.")
    assert is_solved("No, the bill is 119.", "Sorry, I mean that the bill is 59.")
    assert not is_solved("No.", "The bill is 59.", "The bill is 119.")
    assert not is_solved("No. 59 119")
    assert not is_solved("The bill is 59.")
    assert not is_solved("No, the bill of $59 is right.", "Fine, I will refund it after all.")
    assert not is_solved("No problem! I have just refunded it, you get all 59 dollars back.")


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("get_line(line=72)", "first verify the customer whose"),
        ("get_bills(customer=C2)", "first verify the customer whose"),
        ("get_line(line=99)", "no line with this number"),
        ("credit(bill=B9, amount=1)", "no bill with this id"),
        ("credit(bill=B2, amount=-1)", "whole number"),
        ("add_data(line=71, gb=7)", "no such top-up"),
        ("change_plan(line=71, plan=Q)", "no such plan"),
        ("change_plan(line=71, plan=M)", "has this plan already"),
        ("resume_line(line=71)", "active already"),
        ("register_line(line=71)", "registered already"),
        ("request_payment(bill=B1)", "not overdue"),
        ("set_roaming(line=71, on=maybe)", "true or false"),
        ("get_line()", "wrong arguments; call get_line(line)"),
        ("get_line(line=71, why=not)", "wrong arguments"),
        ("open_door()", "no such tool"),
        ("transfer(reason=boredom)", "reason is one of"),
        ("transfer(reason=identity)", "first ask for the PIN"),
        ("find_customer(number=1)", "no account"),
        ("say(line=1)", "say[...]"),
    ],
)
def test_a_senseless_call_is_an_error_and_changes_nothing(action: str, why: str):
    env, result = play(case(), action)
    assert why in result.observation.text and result.observation.text.startswith("Error:")
    assert not result.terminated and result.metrics["tool_errors"] == 1
    assert env.case.world == case()


def test_reading_needs_the_right_pin_and_there_are_two_attempts():
    wrong, right = "verify(customer=C1, pin=1)", "verify(customer=C1, pin=1234)"
    read = "get_line(line=71)"
    assert "first verify" in play(case(), read, identified=False)[1].observation.text
    assert "plan M" in play(case(), wrong, right, read, identified=False)[1].observation.text
    result = play(case(), wrong, wrong, right, identified=False)[1]
    assert "no attempts are left" in result.observation.text


def test_only_a_verified_caller_is_transferred_unless_the_pin_is_missing():
    cancel = "transfer(reason=cancel)"
    assert "first verify" in play(case(), cancel, identified=False)[1].observation.text
    assert play(case(), cancel)[0].case.world.transferred == "cancel"
    identity = ("say[PIN?]", "transfer(reason=identity)")
    assert play(case(), *identity, identified=False)[1].terminated


@pytest.mark.parametrize(
    ("world", "screen"),
    [
        (case(), "data works"),
        (case(airplane=True, sim="loose"), "airplane symbol"),
        (case(SUSPENDED, sim="loose"), "no SIM"),
        (case(SUSPENDED), "no service"),
        (case(replace(LINE, registered=False)), "no service"),
        (case(stale=True), "no service"),
        (case(abroad=True, roaming=True), "no service"),
        (case(replace(LINE, roaming=True), abroad=True), "signal, no data"),
        (case(replace(LINE, roaming=True), abroad=True, roaming=True), "data works"),
        (case(data=False), "signal, no data"),
        (case(vpn=True), "signal, no data"),
        (case(apn="wrong"), "signal, no data"),
        (case(replace(LINE, used_gb=12)), "signal, no data"),  # plan M has 12 GB
        (case(replace(LINE, used_gb=12, extra_gb=2)), "data works"),
        (case(mode="2g"), "data is slow"),
        (case(saver=True), "data is slow"),
        (case(wifi=True, hotspot=True, roaming=True), "data works"),
    ],
)
def test_the_screen_shows_the_most_visible_fault(world: World, screen: str):
    assert world.screen() == screen


def test_months_are_counted_over_the_years():
    assert [months_before("2026-03", count) for count in (0, 2, 3, 15, -10)] == [
        "2026-03", "2026-01", "2025-12", "2024-12", "2027-01",
    ]  # fmt: skip
