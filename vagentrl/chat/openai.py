"""Chat models behind an OpenAI-compatible endpoint: a hosted one, or a server of your own."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vagentrl.chat import ChatModel, ChatReply
from vagentrl.chat.endpoint import (
    Clock,
    Pace,
    Prices,
    Spent,
    check_key_variable,
    check_positive,
    check_url,
    read_key,
    retry_after,
)
from vagentrl.errors import ChatError, ConfigError
from vagentrl.event_loops import close_at_the_end

if TYPE_CHECKING:
    from openai import APIStatusError
    from tenacity import AsyncRetrying, RetryCallState

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0
"""Between two tries, apart from what the server asks for: doubled each time, and some at random."""
TRANSIENT = {408, 409, 425, 429}
"""Statuses below 500 that may be gone at the next try."""
FINAL = {"insufficient_quota", "billing_hard_limit_reached"}
"""Codes of a 429 that no waiting helps against."""
SHOWN = 300
"""Characters of an answer that an error shows."""


class OpenAIChat(ChatModel):
    """Asks an OpenAI-compatible endpoint.

    What may pass is tried again, with pauses that double and a ``Retry-After`` that is honoured:
    no connection, a time-out, 408, 409, 425, 429, 5xx, an answer that is broken off, is not a chat
    completion, or is empty. What would come back the same is not: other statuses, a used-up quota,
    a refusal, a reply cut off at `max_tokens`.

    The API key is read from the environment when it is needed and kept nowhere else.

    Args:
        model: The model, as the endpoint calls it.
        url: The endpoint, ``/v1`` included.
        key_variable: Name of the environment variable with the API key. It may be unset where the
            server asks for none; None sends no key in any case.
        temperature: Of the sampling; None leaves it to the endpoint (some models allow no other).
        max_connections: Prompts that are being answered at a time.
        requests_per_minute: Requests in a minute, retries included, evenly spaced; None sets no
            limit. It holds for each process.
        timeout_s: Seconds that a try may take, to the last byte.
        patience_s: Seconds that a prompt may take with all its tries and the pauses between
            them; waiting for a connection or for `requests_per_minute` does not count.
        retries: Tries after the first one.
        prices: What tokens cost; None counts no cost.
        extra_body: More fields of the request, such as ``{reasoning_effort: low}``.
    """

    def __init__(
        self,
        model: str,
        url: str = "https://api.openai.com/v1",
        key_variable: str | None = "OPENAI_API_KEY",
        temperature: float | None = 0.0,
        max_connections: int = 64,
        requests_per_minute: float | None = None,
        timeout_s: float = 30.0,
        patience_s: float = 120.0,
        retries: int = 4,
        prices: Prices | None = None,
        extra_body: dict[str, Any] | None = None,
    ) -> None:
        check_key_variable(key_variable)
        check_url(url)
        check_positive(
            max_connections=max_connections,
            requests_per_minute=1 if requests_per_minute is None else requests_per_minute,
            timeout_s=timeout_s,
            patience_s=patience_s,
        )
        if retries < 0:
            raise ConfigError(f"retries is {retries}; give 0 or more")
        if find_spec("openai") is None or find_spec("tenacity") is None:
            raise ConfigError(
                "OpenAIChat needs the packages openai and tenacity: pip install 'vagentrl[judges]'"
            )
        _check_json(extra_body)
        self.model = model
        self.url = url.rstrip("/")
        self.key_variable = key_variable
        self.temperature = temperature
        self.max_connections = max_connections
        self.requests_per_minute = requests_per_minute
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self.retries = retries
        self.prices = prices
        self.extra_body = extra_body or {}
        self.spent = Spent()
        self._begin()

    def _begin(self) -> None:
        self._pace = Pace(self.requests_per_minute)
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to this process, its event loops and its key."""
        live = {"_pace", "_sessions"}
        return {name: value for name, value in vars(self).items() if name not in live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def identity(self) -> str:
        body = json.dumps(self.extra_body, sort_keys=True)
        return f"OpenAIChat {self.model} at {self.url}, temperature {self.temperature}, {body}"

    def metrics(self) -> Mapping[str, float]:
        return asdict(self.spent)

    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_completion_tokens": max_tokens,
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        body |= self.extra_body
        session = await self._session()
        arrived = time.monotonic()
        async with session.places:
            clock = Clock()
            self.spent.queued_s += clock.began - arrived
            try:
                return await self._persist(session, body, clock)
            except _Problem as error:
                problem = error  # raised outside: what led to it may hold the key
        self.spent.failures += 1
        raise ChatError(
            f"{self.model} at {self.url}: {problem} (tries: {clock.tries}, in "
            f"{clock.spent():.1f} s). {problem.remedy}"
        )

    # --------------------------------------------------------------------------------- tries

    async def _persist(self, session: _Session, body: dict[str, Any], clock: Clock) -> ChatReply:
        """Try until there is a reply, or no point in going on."""
        async for attempt in self._retrying(clock):
            with attempt:
                waited = await self._pace.wait()
                clock.waited += waited
                self.spent.queued_s += waited
                clock.tries += 1
                self.spent.requests += 1
                answer = await self._send(session, body, self.patience_s - clock.spent())
                reply = self._reply(answer, session)
                self.spent.seconds += clock.spent()
                return reply
        raise AssertionError("tenacity returns or raises")

    def _retrying(self, clock: Clock) -> AsyncRetrying:
        from tenacity import AsyncRetrying, retry_if_exception, wait_exponential_jitter

        backoff = wait_exponential_jitter(
            multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S, jitter=FIRST_PAUSE_S
        )

        def pause(state: RetryCallState) -> float:
            assert state.outcome is not None
            problem = state.outcome.exception()
            return backoff(state) + (problem.pause_s if isinstance(problem, _Problem) else 0)

        def enough(state: RetryCallState) -> bool:
            out_of_patience = clock.spent() + state.upcoming_sleep >= self.patience_s
            return state.attempt_number > self.retries or out_of_patience

        def count(state: RetryCallState) -> None:
            assert state.outcome is not None
            self.spent.retries += 1
            log.debug("%s at %s: %s", self.model, self.url, state.outcome.exception())

        return AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, _Problem) and error.passes),
            stop=enough,
            wait=pause,
            before_sleep=count,
            reraise=True,
        )

    async def _send(self, session: _Session, body: dict[str, Any], left_s: float) -> str:
        """The body of the answer.

        Raises:
            _Problem: When there is none.
        """
        from openai import APIConnectionError, APIStatusError

        limit = min(self.timeout_s, left_s)
        try:
            async with asyncio.timeout(limit):
                # the answer as it came: it is read below, and strictly
                return await session.client.post(
                    "/chat/completions",
                    body=body,
                    cast_to=str,
                    options={"headers": session.headers},
                )
        except TimeoutError:
            raise _Problem(
                f"no whole answer within {limit:.3g} s",
                "The server is too slow or overloaded: lower max_connections, or raise timeout_s "
                "and patience_s",
            ) from None
        except APIStatusError as error:
            raise self._refused(error, session) from None
        except APIConnectionError as error:
            cause = error.__cause__ or error
            raise _Problem(
                f"the connection failed: {session.shown(f'{type(cause).__name__}: {cause}')}",
                "Is the server running, and is url right?",
            ) from None

    def _refused(self, error: APIStatusError, session: _Session) -> _Problem:
        status = error.status_code
        what = f"{status} {session.shown(error.response.text)}"
        if status in (401, 403):
            return _Problem(what, self._about_the_key(session), passes=False)
        if error.code in FINAL:
            return _Problem(what, "The account's quota is used up", passes=False)
        if status < 500 and status not in TRANSIENT:
            return _Problem(what, "Check url, model and extra_body", passes=False)
        remedy = "See the server's log"
        if status == 429:
            remedy = "Lower max_connections or requests_per_minute, or raise retries and patience_s"
        pause_s = retry_after(error.response.headers)
        if pause_s:
            what += f" (asks to wait {pause_s:.3g} s)"
        return _Problem(what, remedy, pause_s=pause_s)

    def _about_the_key(self, session: _Session) -> str:
        if self.key_variable is None:
            return "key_variable is null, so no key was sent"
        state = "is set" if session.key else "is not set"
        return f"The key is read from the environment variable {self.key_variable}, which {state}"

    def _reply(self, answer: str, session: _Session) -> ChatReply:
        """The reply in an answer.

        Raises:
            _Problem: When there is no whole one.
        """
        try:
            completion = json.loads(answer)
            [choice] = completion["choices"]
            message, finish = choice["message"], choice["finish_reason"]
            text, refusal = message["content"], message.get("refusal")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise _Problem(
                f"the answer is not a chat completion: {session.shown(answer)!r}",
                "Is url that of the API, /v1 included?",
            ) from None
        prompt_tokens, reply_tokens = self._meter(completion)
        if finish == "length":
            raise _Problem(
                f"the reply was cut off at max_tokens: {session.shown(str(text))!r}",
                "Raise max_tokens of what asks, or let the model reason less",
                passes=False,
            )
        if finish == "content_filter" or refusal:
            reason = session.shown(str(refusal or finish))
            remedy = "Reword the prompt, or take another model"
            raise _Problem(f"the model refused: {reason}", remedy, passes=False)
        if not isinstance(text, str) or not text.strip():
            raise _Problem(
                f"the reply is empty (finish_reason {session.shown(str(finish))!r})",
                "Does the model have a chat template?",
            )
        cost = self.prices.of(prompt_tokens, reply_tokens) if self.prices else 0.0
        text = text.encode(errors="replace").decode()  # JSON can hold half a surrogate pair
        return ChatReply(session.without_key(text), prompt_tokens, reply_tokens, cost)

    def _meter(self, completion: dict[str, Any]) -> tuple[int, int]:
        """Count the tokens of an answer, whatever becomes of it."""
        usage = completion.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        prompt, reply = counts.get("prompt_tokens"), counts.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(reply, int):
            self.spent.unmetered += 1
            return 0, 0
        self.spent.prompt_tokens += prompt
        self.spent.reply_tokens += reply
        if self.prices is not None:
            self.spent.cost += self.prices.of(prompt, reply)
        return prompt, reply

    # ------------------------------------------------------------------------------ connections

    async def _session(self) -> _Session:
        """The connections of the running event loop: they cannot be used from another."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            alive = {one: kept for one, kept in self._sessions.items() if not one.is_closed()}
            session = _Session(self)
            self._sessions = alive | {loop: session}
            await anext(session.life)
        return self._sessions[loop]


class _Session:
    """What belongs to one event loop.

    Attributes:
        client: Holds the connections.
        places: As many as there may be connections.
        key: The API key, or nothing.
        headers: Of every request.
        life: Suspended as long as the loop runs; the loop's end resumes it, and it closes the
            connections.
    """

    def __init__(self, chat: OpenAIChat) -> None:
        from openai import AsyncOpenAI, Omit

        self.key = read_key(chat.key_variable)
        self.client = AsyncOpenAI(
            base_url=chat.url,
            api_key=self.key or "none",
            timeout=None,  # asyncio's also ends an answer that drips
            max_retries=0,  # tenacity's are counted, and know more of what is worth one
        )
        self.headers = {} if self.key else {"Authorization": Omit()}
        self.places = asyncio.Semaphore(chat.max_connections)
        self.life = close_at_the_end(self.client.close)

    def without_key(self, text: str) -> str:
        """A text of the server's, which knows the key and may repeat it."""
        return text.replace(self.key, "[key]") if self.key else text

    def shown(self, text: str) -> str:
        """The start of a text, on one line and without the key."""
        safe = " ".join(self.without_key(text).split())
        return safe if len(safe) <= SHOWN else f"{safe[:SHOWN]}…"


class _Problem(Exception):
    """Why a try gave no reply.

    Attributes:
        remedy: What to do about it.
        passes: Whether another try may go better.
        pause_s: What the server wants us to wait.
    """

    def __init__(
        self, what: str, remedy: str, *, passes: bool = True, pause_s: float = 0.0
    ) -> None:
        super().__init__(what)
        self.remedy = remedy
        self.passes = passes
        self.pause_s = pause_s


def _check_json(extra_body: dict[str, Any] | None) -> None:
    try:
        json.dumps(extra_body)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"extra_body cannot be sent as JSON: {error}") from error
