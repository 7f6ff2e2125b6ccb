"""The syntax of the agent's actions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagentrl_envs.support.calls import LONGEST, Call, CallError, read_call, write_call


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("close()", Call("close")),
        ("  close ( ) ", Call("close")),
        ("verify(customer=C12, pin=0412)", Call("verify", {"customer": "C12", "pin": "0412"})),
        ("find_customer(number='7 30')", Call("find_customer", {"number": "7 30"})),
        ('f(a="x, y=1)", b=-2.5)', Call("f", {"a": "x, y=1)", "b": "-2.5"})),
        ("set(\n  on=true\n)", Call("set", {"on": "true"})),
        ("say[Turn [it] off.]", Call("say", {"text": "Turn [it] off."})),
        ('say(text="Hello")', Call("say", {"text": "Hello"})),
        ('{"name": "close"}', Call("close")),
        (
            '{"name": "f", "arguments": {"gb": 5, "on": true, "line": "071"}}',
            Call("f", {"gb": "5", "on": "true", "line": "071"}),
        ),
    ],
)
def test_the_three_forms_are_read(text: str, wanted: Call):
    assert read_call(text) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write name"),
        ("close", "write name"),
        ("please close()", "write name"),
        ("close(); close()", "an argument is"),
        ("os.system(a=1)", "write name"),
        ("f(1)", "an argument is"),
        ("f(a=)", "an argument is"),
        ("f(a=1,)", "an argument is"),
        ("f(a=1 b=2)", "an argument is"),
        ("f(a=__import__('os'))", "an argument is"),
        ("f(a=1, a=2)", "given twice"),
        ("f(a='x)", "an argument is"),
        ("say[hello", "write name"),
        ("{", "not JSON"),
        ("{}", '"name" is'),
        ('{"name": 5}', '"name" is'),
        ('{"name": "f", "arguments": []}', '"arguments" is'),
        ('{"name": "f", "arguments": {"a": null}}', "a value is"),
        ('{"name": "f", "arguments": {"a": 1.5}}', "a value is"),
        ('{"name": "f", "name": "g"}', "given twice"),
        ('{"name": "f", "tool": "g"}', "has the keys"),
        ('{"name": ' + "[" * 50, "nested too deeply"),
        ("f(a=1)\x00", "control characters"),
        ("say[\ud800]", "control characters"),
        (r'{"name": "say", "arguments": {"text": "\ud83d hi"}}', "control characters"),
        (r'{"name": "say", "arguments": {"text": "\u0000"}}', "control characters"),
        ("a" * (LONGEST + 1), "at most"),
    ],
)
def test_what_is_wrong_is_named(text: str, why: str):
    with pytest.raises(CallError, match=why):
        read_call(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str):
    try:
        read_call(text)
    except CallError as error:
        assert "\n" not in str(error)


NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters='"', exclude_categories=["C"]), max_size=9)


@given(NAMES.filter(lambda name: name != "say"), st.dictionaries(NAMES, VALUES, max_size=3))
def test_what_is_written_is_read_again(name: str, arguments: dict[str, str]):
    assert read_call(write_call(name, arguments)) == Call(name, arguments)
