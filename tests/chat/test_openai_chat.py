"""`OpenAIChat` with a fake server; tests/judges/test_wire.py uses a real one."""

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
        chat = OpenAIChat("fake", url, **settings)
        return ask(chat), chat, server


def refused(*answers: Any, match: str, **settings: Any) -> OpenAIChat:
    with serving(*answers) as (_, url):
        chat = OpenAIChat("fake", url, **settings)
        with pytest.raises(ChatError, match=match) as raised:
            ask(chat)
    assert str(raised.value).startswith(f"fake at {url}: ")
    assert chat.usage.failures == 1
    return chat


# ------------------------------------------------------------------------ requests and replies


def test_a_reply_has_its_token_counts_and_cost():
    prices = Prices(prompt=2.0, reply=8.0)
    reply, chat, server = asked(says("hi"), prices=prices)
    # 10 tokens at 2 and 5 tokens at 8 per million: (20 + 40) / 1e6
    assert (reply.text, reply.prompt_tokens, reply.reply_tokens) == ("hi", 10, 5)
    assert reply.cost == pytest.approx(60e-6)
    metrics = chat.metrics()
    assert metrics["requests"] == 1
    assert metrics["cost"] == pytest.approx(60e-6)
    assert metrics["seconds"] > 0
    assert (metrics["retries"], metrics["failures"], metrics["unmetered"]) == (0, 0, 0)
    assert server.requests[0].path == "/v1/chat/completions"


def test_a_lone_surrogate_in_a_reply_is_replaced():
    reply, _, _ = asked(says("a \ud83d b"))
    assert reply.text == "a ? b"


def test_the_request_contains_the_settings():
    with serving(says("hi")) as (server, url):
        chat = OpenAIChat("fake", url, extra_body={"seed": 3})
        ask(chat, "why?", system="be brief", max_tokens=7)
        ask(OpenAIChat("fake", url, temperature=None), "why?")
    assert server.requests[0].fields == {
        "model": "fake",
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


def test_a_reply_without_token_counts_is_counted_as_unmetered():
    reply, chat, _ = asked(says("hi", metered=False), prices=Prices(1.0, 1.0))
    assert (reply.prompt_tokens, reply.cost) == (0, 0.0)
    assert chat.usage.unmetered == 1


def test_max_connections_limits_the_prompts_in_progress():
    async def many(chat: OpenAIChat) -> list[ChatReply]:
        return await asyncio.gather(*(chat.complete(str(n)) for n in range(12)))

    with serving(Answer(body=completion("hi"), delay_s=0.02)) as (server, url):
        replies = asyncio.run(many(OpenAIChat("fake", url, max_connections=3)))
    assert [reply.text for reply in replies] == ["hi"] * 12
    assert server.most_at_once == 3


def test_requests_are_spaced_evenly_for_the_limit_per_minute(monkeypatch: pytest.MonkeyPatch):
    now, waits = 100.0, []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(endpoint.time, "monotonic", lambda: now)
    monkeypatch.setattr(endpoint.asyncio, "sleep", sleep)
    limiter = endpoint.RateLimiter(600)  # one every 0.1 s

    async def several(count: int) -> list[float]:
        return [await limiter.wait() for _ in range(count)]

    assert asyncio.run(several(4)) == pytest.approx([0, 0.1, 0.2, 0.3])
    now = 100.35  # the fifth request may be sent at 100.4
    assert asyncio.run(several(1)) == pytest.approx([0.05])
    now = 200.0  # unused time does not allow a burst
    assert asyncio.run(several(2)) == pytest.approx([0, 0.1])
    assert waits == pytest.approx([0.1, 0.2, 0.3, 0.05, 0.1])


def test_waiting_for_the_rate_limit_does_not_count_towards_patience_s(
    monkeypatch: pytest.MonkeyPatch,
):
    class HourLimiter:
        """A rate limiter, and its clock, in which every request waits for an hour."""

        passed = 0.0

        async def wait(self) -> float:
            self.passed += 3600
            return 3600.0

        def monotonic(self) -> float:
            return time.monotonic() + self.passed

    limiter = HourLimiter()
    monkeypatch.setattr(endpoint, "time", limiter)
    with serving(refuses(500), says("hi")) as (_, url):
        chat = OpenAIChat("fake", url, patience_s=60)
        monkeypatch.setattr(chat, "_rate_limiter", limiter)
        assert ask(chat).text == "hi"
    assert chat.usage.queued_s >= 7200
    assert chat.usage.seconds < 3600


def test_each_event_loop_has_its_own_connections_and_a_copy_has_none():
    with serving(says("hi")) as (server, url):
        chat = OpenAIChat("fake", url)
        for one in (chat, chat, copy.deepcopy(chat), pickle.loads(pickle.dumps(chat))):
            assert ask(one).text == "hi"
            assert ask(one).text == "hi"
    assert len(server.requests) == 8
    assert len(chat._sessions) == 1  # those of closed loops are dropped


def test_connections_are_reused_and_closed_with_their_event_loop():
    opened = 0

    class CountingServer(ChatServer):
        async def serve(self, reader: Any, writer: Any) -> None:
            nonlocal opened
            opened += 1
            await super().serve(reader, writer)

    async def twice() -> None:
        server = CountingServer(lambda request: says("hi"))
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        chat = OpenAIChat("fake", f"http://127.0.0.1:{port}/v1")
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


# ------------------------------------------------------------------------------------- failures

TRANSIENT: dict[str, Answer] = {
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
    "a slow drip": Answer(body=completion("hi"), drip_s=0.05),  # takes 13 s in all
}


@pytest.mark.parametrize("fault", TRANSIENT)
def test_transient_failures_are_retried(fault: str):
    reply, chat, server = asked(TRANSIENT[fault], says("hi"))
    assert reply.text == "hi"
    assert (chat.usage.requests, chat.usage.retries, chat.usage.failures) == (2, 1, 0)
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", SLOW)
def test_timeouts_are_retried(fault: str):
    reply, chat, _ = asked(SLOW[fault], says("hi"), timeout_s=0.5, retries=20)
    assert reply.text == "hi"
    assert chat.usage.retries >= 1  # a busy machine may time out more often


@pytest.mark.parametrize("fault", [*TRANSIENT, *SLOW])
def test_a_failure_that_persists_is_an_error(fault: str):
    timeout_s = 0.1 if fault in SLOW else 30
    answer = (TRANSIENT | SLOW)[fault]
    chat = refused(answer, match=r"attempts: 3, in", timeout_s=timeout_s, retries=2)
    assert (chat.usage.requests, chat.usage.retries) == (3, 2)


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
def test_permanent_failures_are_not_retried(answer: Answer, match: str):
    chat = refused(answer, match=match)
    assert chat.usage.requests == 1


def test_without_a_server_the_error_says_that_the_connection_failed():
    with socket.socket() as taken:  # the port is bound, but not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        chat = OpenAIChat("fake", url, retries=1)
        with pytest.raises(ChatError, match=r"connection failed: ConnectError.*Is the server runn"):
            ask(chat)
    assert (chat.usage.requests, chat.usage.failures) == (2, 1)


def test_the_tokens_of_a_rejected_reply_count_towards_the_cost():
    chat = refused(says("half", finish="length"), match="cut off", prices=Prices(1.0, 1.0))
    assert chat.usage.cost == pytest.approx(15e-6)  # 10 + 5 tokens


def test_retry_after_sets_the_minimum_pause():
    started = time.monotonic()
    asked(refuses(429, retry_after="0.3"), says("hi"))
    assert time.monotonic() - started >= 0.3


def test_a_retry_after_longer_than_patience_s_fails_at_once():
    chat = refused(refuses(429, retry_after="3600"), match=r"asks to wait 3.6e\+03 s")
    assert chat.usage.requests == 1


def test_patience_s_limits_all_attempts_together():
    slow = Answer(body=completion("hi"), delay_s=5)
    chat = refused(slow, match="no complete answer", timeout_s=0.1, patience_s=0.25, retries=100)
    assert chat.usage.requests <= 3


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7), ("0.5", 0.5), ("-3", 0), ("", 0), ("soon", 0)]
)
def test_retry_after_may_be_a_number_of_seconds(said: str, seconds: float):
    assert retry_after({"retry-after": said}) == seconds


def test_retry_after_may_be_a_date():
    assert 50 < retry_after({"retry-after": formatdate(time.time() + 60)}) <= 61


# ---------------------------------------------------------------------------------------- the key


def test_the_key_goes_to_the_server_and_nowhere_else(key: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    with serving(says("hi")) as (server, url):
        chat = OpenAIChat("fake", url)

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
        chat = OpenAIChat("fake", url, retries=1)
        with pytest.raises(ChatError) as raised:
            ask(chat)
    error: BaseException | None = raised.value
    assert "[key]" in str(error)
    while error is not None:  # all exceptions that a traceback would show
        assert key not in str(error) + repr(error)
        error = error.__cause__ or error.__context__
    assert key not in caplog.text


def test_the_error_for_a_missing_or_wrong_key_names_the_variable(
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
def test_a_key_in_place_of_the_variables_name_is_refused_and_not_shown(value: str):
    with pytest.raises(ConfigError, match="not the name of an environment variable") as raised:
        OpenAIChat("fake", key_variable=value)
    assert not value or value not in str(raised.value)


def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\nX-Evil: 1")
    with pytest.raises(ConfigError, match="printable ASCII") as raised:
        ask(OpenAIChat("fake", "http://127.0.0.1:9/v1"))
    assert KEY not in str(raised.value)


def test_white_space_around_a_key_is_stripped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    _, _, server = asked(says("hi"))
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "url", ["https://me:secret@host/v1", "https://host/v1?api-key=secret", "host/v1", "ftp://host"]
)
def test_a_url_with_a_secret_or_without_a_scheme_is_refused(url: str):
    with pytest.raises(ConfigError) as raised:
        OpenAIChat("fake", url)
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
        OpenAIChat("fake", **settings)
