import pytest

from vagentrl.interactions.tools.calls import Call, Malformed, after_thinking, read_calls

GOOD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def calls(reply: str) -> list[Call | Malformed]:
    return read_calls(reply, most=3, longest=5000)


def problem(reply: str) -> str:
    (call,) = calls(reply)
    assert isinstance(call, Malformed)
    return call.problem


def test_calls_are_read_in_order_between_other_text():
    reply = f"First {GOOD} then <tool_call>" + '{"name": "now"}</tool_call> done'
    assert calls(reply) == [Call("add", {"a": 1}), Call("now", {})]


def test_tags_inside_a_string_belong_to_the_string():
    reply = '<tool_call>{"name": "say", "arguments": {"it": "</tool_call><tool_call>"}}</tool_call>'
    assert calls(reply) == [Call("say", {"it": "</tool_call><tool_call>"})]


def test_a_call_in_a_thought_is_not_made():
    assert calls(after_thinking(f"<think>{GOOD}</think>It is 3.")) == []
    assert calls(after_thinking(f"<think>Hm.</think>{GOOD}")) == [Call("add", {"a": 1})]


def test_a_reply_without_a_tag_has_no_call():
    assert calls('{"name": "add", "arguments": {}} </tool_call>') == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", "not valid JSON"),
        ('{"name": "add", "arguments": {"a": 1}', "not valid JSON"),
        ("{'name': 'add'}", "not valid JSON"),
        ('{"name": "add", "arguments": {"a": NaN}}', "NaN"),
        ('{"name": "add", "arguments": {"a": 1e999}}', "too large"),
        ('{"name": "add", "arguments": {"a": -Infinity}}', "Infinity"),
        ('{"name": "add", "name": "now", "arguments": {}}', "twice"),
        ('{"name": "add", "arguments": {"a": 1, "a": 2}}', "twice"),
        ('{"name": "add", "arguments": "{}"}', "object"),
        ('{"name": "add", "arguments": {}, "id": 1}', "object"),
        ('{"name": 7, "arguments": {}}', "object"),
        ('["add"]', "object"),
        ("null", "object"),
        ('{"name": "add"} {"name": "add"}', "not closed"),
        ("[" * 4000, "nested too deeply"),
        ('{"name": "add", "arguments": {"a": "' + "x" * 10**6 + '"}}', "more than 5000"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(body: str, told: str):
    assert told in problem(f"<tool_call>{body}</tool_call>")


def test_a_call_without_an_end_is_not_made():
    assert "not closed" in problem('<tool_call>{"name": "add", "arguments": {"a": 1}}')


def test_a_good_call_after_a_broken_one_is_made():
    broken, good = calls("<tool_call>{oops}</tool_call>" + GOOD)
    assert isinstance(broken, Malformed) and good == Call("add", {"a": 1})
    broken, good = calls("<tool_call>{oops " + GOOD)
    assert isinstance(broken, Malformed) and good == Call("add", {"a": 1})


def test_calls_beyond_the_limit_are_answered_once():
    read = calls(GOOD * 1000)
    assert read[:3] == [Call("add", {"a": 1})] * 3
    assert isinstance(read[3], Malformed) and len(read) == 4


@pytest.mark.parametrize("unit", ["<tool_call>", '<tool_call>"', "<tool_call>{", "</tool_call>"])
def test_megabytes_of_tags_are_read(unit: str):
    assert len(calls(unit * (10**6 // len(unit)))) <= 4
