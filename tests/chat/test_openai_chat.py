"""A server of straw for what goes wrong, and vLLM's own for the wire."""

import asyncio
import copy
import json
import logging
import pickle
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from tests.chat_server import Answer, ChatServer, completion, refuses, says, serving
from vagentrl.chat import ChatReply, OpenAIChat, endpoint
from vagentrl.chat import openai as module
from vagentrl.chat.endpoint import Prices, retry_after
from vagentrl.errors import ChatError, ConfigError

KEY = "sk-proj-0123456789abcdefghijKLMNOP"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.005)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return KEY


def ask(chat: OpenAIChat, prompt: str = "hello", **settings: Any) -> ChatReply:
    return asyncio.run(chat.complete(prompt, **settings))


def asked(*answers: Any, **settings: Any) -> tuple[ChatReply, OpenAIChat, ChatServer]:
    with serving(*answers) as (server, url):
        chat = OpenAIChat("straw", url, **settings)
        return ask(chat), chat, server


def refused(*answers: Any, match: str, **settings: Any) -> OpenAIChat:
    with serving(*answers) as (_, url):
        chat = OpenAIChat("straw", url, **settings)
        with pytest.raises(ChatError, match=match) as raised:
            ask(chat)
    assert str(raised.value).startswith(f"straw at {url}: ")
    assert chat.spent.failures == 1
    return chat


# -------------------------------------------------------------------------------- what is asked


def test_a_reply_comes_with_what_it_took():
    prices = Prices(prompt=2.0, reply=8.0)
    reply, chat, server = asked(says("hi"), prices=prices)
    # 10 tokens at 2 and 5 at 8 for a million: (20 + 40) / 1e6
    assert (reply.text, reply.prompt_tokens, reply.reply_tokens) == ("hi", 10, 5)
    assert reply.cost == pytest.approx(60e-6)
    spent = chat.metrics()
    assert spent["requests"] == 1
    assert spent["cost"] == pytest.approx(60e-6)
    assert spent["seconds"] > 0
    assert (spent["retries"], spent["failures"], spent["unmetered"]) == (0, 0, 0)
    assert server.requests[0].path == "/v1/chat/completions"


def test_half_a_surrogate_pair_is_no_text():
    reply, _, _ = asked(says("a \ud83d b"))
    assert reply.text == "a ? b"


def test_the_request_holds_the_settings():
    with serving(says("hi")) as (server, url):
        chat = OpenAIChat("straw", url, extra_body={"seed": 3})
        ask(chat, "why?", system="be brief", max_tokens=7)
        ask(OpenAIChat("straw", url, temperature=None), "why?")
    assert server.requests[0].fields == {
        "model": "straw",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "why?"},
        ],
        "temperature": 0.0,
        "max_completion_tokens": 7,
        "seed": 3,
    }
    assert "temperature" not in server.requests[1].fields
    assert len(server.requests[1].fields["messages"]) == 1


def test_tokens_that_the_server_does_not_tell_are_counted_as_untold():
    reply, chat, _ = asked(says("hi", metered=False), prices=Prices(1.0, 1.0))
    assert (reply.prompt_tokens, reply.cost) == (0, 0.0)
    assert chat.spent.unmetered == 1


def test_no_more_prompts_are_answered_at_a_time_than_there_are_connections():
    async def many(chat: OpenAIChat) -> list[ChatReply]:
        return await asyncio.gather(*(chat.complete(str(n)) for n in range(12)))

    with serving(Answer(body=completion("hi"), delay_s=0.02)) as (server, url):
        replies = asyncio.run(many(OpenAIChat("straw", url, max_connections=3)))
    assert [reply.text for reply in replies] == ["hi"] * 12
    assert server.most_at_once == 3


def test_requests_are_spaced_to_keep_the_limit_of_a_minute(monkeypatch: pytest.MonkeyPatch):
    now, waits = 100.0, []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(endpoint.time, "monotonic", lambda: now)
    monkeypatch.setattr(endpoint.asyncio, "sleep", sleep)
    pace = endpoint.Pace(600)  # one every 0.1 s

    async def several(count: int) -> list[float]:
        return [await pace.wait() for _ in range(count)]

    assert asyncio.run(several(4)) == pytest.approx([0, 0.1, 0.2, 0.3])
    now = 100.35  # the fifth could go at 100.4
    assert asyncio.run(several(1)) == pytest.approx([0.05])
    now = 200.0  # what was not used does not add up to a burst
    assert asyncio.run(several(2)) == pytest.approx([0, 0.1])
    assert waits == pytest.approx([0.1, 0.2, 0.3, 0.05, 0.1])


def test_waiting_for_the_limit_of_a_minute_is_not_the_servers_fault(
    monkeypatch: pytest.MonkeyPatch,
):
    class Hour:
        """A pace that lets every request wait for an hour, as one would see it on the clock."""

        passed = 0.0

        async def wait(self) -> float:
            self.passed += 3600
            return 3600.0

        def monotonic(self) -> float:
            return time.monotonic() + self.passed

    hour = Hour()
    monkeypatch.setattr(endpoint, "time", hour)
    with serving(refuses(500), says("hi")) as (_, url):
        chat = OpenAIChat("straw", url, patience_s=60)
        monkeypatch.setattr(chat, "_pace", hour)
        assert ask(chat).text == "hi"
    assert chat.spent.queued_s >= 7200
    assert chat.spent.seconds < 3600


def test_each_event_loop_has_its_own_connections_and_a_copy_has_none():
    with serving(says("hi")) as (server, url):
        chat = OpenAIChat("straw", url)
        for one in (chat, chat, copy.deepcopy(chat), pickle.loads(pickle.dumps(chat))):
            assert ask(one).text == "hi"
            assert ask(one).text == "hi"
    assert len(server.requests) == 8
    assert len(chat._sessions) == 1  # those of loops that are over are let go


def test_connections_are_used_again_and_closed_with_their_event_loop():
    opened = 0

    class Counting(ChatServer):
        async def serve(self, reader: Any, writer: Any) -> None:
            nonlocal opened
            opened += 1
            await super().serve(reader, writer)

    async def twice() -> None:
        server = Counting(lambda request: says("hi"))
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        chat = OpenAIChat("straw", f"http://127.0.0.1:{port}/v1")
        sessions.append(chat._sessions)
        await chat.complete("1")
        await chat.complete("2")
        sessions.append(chat._sessions)
        listening.close()

    sessions: list[Any] = []
    asyncio.run(twice())
    assert opened == 1
    [session] = sessions[-1].values()
    assert session.client.is_closed()


# ------------------------------------------------------------------------------ what goes wrong

PASSING: dict[str, Answer] = {
    "429": refuses(429),
    "429 with Retry-After": refuses(429, retry_after="0.02"),
    "500": refuses(500),
    "503 that is not JSON": Answer(503, "<html>busy</html>", {"content-type": "text/html"}),
    "408": refuses(408),
    "an answer that is broken off": Answer(body=completion("hi"), cut=40),
    "an answer without a body": Answer(body=completion("hi"), cut=0),
    "malformed JSON": Answer(body=completion("hi")[:-9]),
    "JSON that is no completion": Answer(body='{"choices": []}'),
    "JSON that is a list": Answer(body="[1, 2]"),
    "a page": Answer(body="<html>hello</html>", headers={"content-type": "text/html"}),
    "nesting": Answer(body="[" * 100_000),
    "an empty reply": says("  \n"),
    "no reply": says(None),
}
SLOW: dict[str, Answer] = {
    "a time-out": Answer(body=completion("hi"), delay_s=60),
    "a slow drip": Answer(body=completion("hi"), drip_s=0.05),  # 13 s, a byte now and then
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_may_pass_is_tried_again(fault: str):
    reply, chat, server = asked(PASSING[fault], says("hi"))
    assert reply.text == "hi"
    assert (chat.spent.requests, chat.spent.retries, chat.spent.failures) == (2, 1, 0)
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", SLOW)
def test_what_takes_too_long_is_tried_again(fault: str):
    reply, chat, _ = asked(SLOW[fault], says("hi"), timeout_s=0.5, retries=20)
    assert reply.text == "hi"
    assert chat.spent.retries >= 1  # more where a busy machine is slow in good faith


@pytest.mark.parametrize("fault", [*PASSING, *SLOW])
def test_what_does_not_pass_is_an_error_and_never_a_reply(fault: str):
    timeout_s = 0.1 if fault in SLOW else 30
    answer = (PASSING | SLOW)[fault]
    chat = refused(answer, match=r"tries: 3, in", timeout_s=timeout_s, retries=2)
    assert (chat.spent.requests, chat.spent.retries) == (3, 2)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (refuses(400, "bad field"), "400 .*bad field.*extra_body"),
        (refuses(404, "no such model"), "404 .*no such model.*Check url, model"),
        (refuses(429, "pay", code="insufficient_quota"), "429 .*quota is used up"),
        (says("half an ans", finish="length"), "cut off at max_tokens: 'half an ans'"),
        (says(None, finish="content_filter"), "refused: content_filter"),
    ],
)
def test_what_would_come_back_the_same_is_not_tried_again(answer: Answer, match: str):
    chat = refused(answer, match=match)
    assert chat.spent.requests == 1


def test_a_server_that_is_not_there_is_named():
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        chat = OpenAIChat("straw", url, retries=1)
        with pytest.raises(ChatError, match=r"connection failed: ConnectError.*Is the server runn"):
            ask(chat)
    assert (chat.spent.requests, chat.spent.failures) == (2, 1)


def test_the_tokens_of_a_reply_that_is_thrown_away_are_paid_for():
    chat = refused(says("half", finish="length"), match="cut off", prices=Prices(1.0, 1.0))
    assert chat.spent.cost == pytest.approx(15e-6)  # 10 + 5 tokens


def test_the_server_says_how_long_to_wait():
    started = time.monotonic()
    asked(refuses(429, retry_after="0.3"), says("hi"))
    assert time.monotonic() - started >= 0.3


def test_who_is_told_to_wait_longer_than_patience_gives_up_at_once():
    chat = refused(refuses(429, retry_after="3600"), match=r"asks to wait 3.6e\+03 s")
    assert chat.spent.requests == 1


def test_patience_is_for_all_tries_together():
    slow = Answer(body=completion("hi"), delay_s=5)
    chat = refused(slow, match="no whole answer", timeout_s=0.1, patience_s=0.25, retries=100)
    assert chat.spent.requests <= 3


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7), ("0.5", 0.5), ("-3", 0), ("", 0), ("soon", 0)]
)
def test_a_retry_after_is_seconds(said: str, seconds: float):
    assert retry_after({"retry-after": said}) == seconds


def test_a_retry_after_may_be_a_date():
    assert 50 < retry_after({"retry-after": formatdate(time.time() + 60)}) <= 61


# ---------------------------------------------------------------------------------------- the key


def test_the_key_goes_to_the_server_and_nowhere_else(key: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    with serving(says("hi")) as (server, url):
        chat = OpenAIChat("straw", url)

        async def inside() -> str:
            await chat.complete("hello")
            return repr(chat) + repr(vars(chat)) + pickle.dumps(chat).decode("latin-1")

        shown = asyncio.run(inside()) + chat.identity() + json.dumps(dict(chat.metrics()))
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert key not in shown + caplog.text


@pytest.mark.parametrize("echo", [refuses, lambda status, text: Answer(status, text * 20)])
@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
def test_a_server_that_repeats_the_key_does_not_bring_it_into_errors(
    status: int,
    echo: Callable[[int, str], Answer],
    key: str,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG)
    with serving(echo(status, f"Incorrect API key provided: {key}")) as (_, url):
        chat = OpenAIChat("straw", url, retries=1)
        with pytest.raises(ChatError) as raised:
            ask(chat)
    error: BaseException | None = raised.value
    assert "[key]" in str(error)
    while error is not None:  # what a traceback would show
        assert key not in str(error) + repr(error)
        error = error.__cause__ or error.__context__
    assert key not in caplog.text


def test_a_key_that_is_missing_or_wrong_is_asked_for_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("MY_KEY", raising=False)
    refused(refuses(401), match="environment variable MY_KEY, which is not", key_variable="MY_KEY")
    monkeypatch.setenv("MY_KEY", "wrong")
    refused(refuses(401), match="environment variable MY_KEY, which is set", key_variable="MY_KEY")
    refused(refuses(401), match="no key was sent", key_variable=None)


def test_without_a_key_no_authorization_is_sent(key: str):
    _, _, server = asked(says("hi"), key_variable=None)
    assert "authorization" not in server.requests[0].headers
    _, _, server = asked(says("hi"), key_variable="SOME_OTHER_KEY")
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("value", [KEY, "abcdef0123456789", "AKIAIOSFODNN7EXAMPLE", "", "MY KEY"])
def test_a_key_in_place_of_its_name_is_refused_and_not_shown(value: str):
    with pytest.raises(ConfigError, match="not the name of an environment variable") as raised:
        OpenAIChat("straw", key_variable=value)
    assert not value or value not in str(raised.value)


def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\nX-Evil: 1")
    with pytest.raises(ConfigError, match="printable ASCII") as raised:
        ask(OpenAIChat("straw", "http://127.0.0.1:9/v1"))
    assert KEY not in str(raised.value)


def test_the_white_space_around_a_key_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    _, _, server = asked(says("hi"))
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "url", ["https://me:secret@host/v1", "https://host/v1?api-key=secret", "host/v1", "ftp://host"]
)
def test_an_address_with_a_secret_or_without_a_scheme_is_refused(url: str):
    with pytest.raises(ConfigError) as raised:
        OpenAIChat("straw", url)
    assert "secret@" not in str(raised.value) and "=secret" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_connections": 0}, {"requests_per_minute": 0}, {"timeout_s": 0}, {"patience_s": -1},
        {"retries": -1}, {"extra_body": {"x": object()}},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        OpenAIChat("straw", **settings)
