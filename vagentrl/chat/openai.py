"""Chat models behind an OpenAI-compatible endpoint, hosted or on your own server."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vagentrl.chat import ChatModel, ChatReply
from vagentrl.chat.endpoint import (
    Prices,
    PromptTimer,
    RateLimiter,
    Usage,
    check_key_variable,
    check_positive,
    check_url,
    read_key,
    retry_after,
)
from vagentrl.errors import ChatError, ConfigError
from vagentrl.event_loops import close_at_the_end
from vagentrl.types import encodable

if TYPE_CHECKING:
    from openai import APIStatusError
    from tenacity import AsyncRetrying, RetryCallState

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0
"""First and longest pause between two attempts; it doubles each time, with random jitter.

The server's ``Retry-After`` is added to the pause.
"""
TRANSIENT = {408, 409, 425, 429}
"""HTTP statuses below 500 after which a request is sent again."""
REFUSED = {400, 413, 422}
"""HTTP statuses with which an endpoint refuses a prompt: its content, its length, its characters.

With wrong settings these statuses answer every prompt, which `probe` notices at the start.
"""
QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached"}
"""Error codes of a 429 that are permanent."""
SHOWN = 300
"""Number of characters of an answer that an error quotes."""


class OpenAIChat(ChatModel):
    """Asks an OpenAI-compatible endpoint.

    Temporary failures are retried with exponential backoff, respecting ``Retry-After``: failed
    connections, timeouts, statuses 408, 409, 425, 429 and 5xx, and answers that are incomplete,
    empty, or not a chat completion. Permanent failures are not retried: other statuses, an
    exhausted quota, a refusal, and a reply cut off at `max_tokens`.

    The API key is read from the environment when it is needed, and is neither stored nor logged.

    Args:
        model: The model's name at the endpoint.
        url: The endpoint's URL, ``/v1`` included.
        key_variable: Name of the environment variable with the API key. The variable may be unset
            if the server needs no key; None never sends a key.
        temperature: Sampling temperature; None for the endpoint's default (some models allow no
            other value).
        max_connections: Maximum number of prompts in progress.
        requests_per_minute: Maximum number of requests per minute and process, retries included,
            evenly spaced; None for no limit.
        timeout_s: Seconds until an attempt must be complete.
        patience_s: Seconds until a prompt's attempts, pauses included, must be complete. Time spent
            waiting for a connection or for `requests_per_minute` does not count.
        retries: Maximum number of attempts after the first one.
        prices: Prices of tokens; None to count no cost.
        extra_body: Additional fields of the request, such as ``{reasoning_effort: low}``.
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
        self.usage = Usage()
        self._init_connections()

    def _init_connections(self) -> None:
        self._rate_limiter = RateLimiter(self.requests_per_minute)
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the connections and the key, which belong to this process."""
        live = {"_rate_limiter", "_sessions"}
        return {name: value for name, value in vars(self).items() if name not in live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._init_connections()

    def identity(self) -> str:
        body = json.dumps(self.extra_body, sort_keys=True)
        return f"OpenAIChat {self.model} at {self.url}, temperature {self.temperature}, {body}"

    def metrics(self) -> Mapping[str, float]:
        return asdict(self.usage)

    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        told = [{"role": "system", "content": system}] if system else []
        asked = {"role": "user", "content": prompt}
        return await self.converse([*told, asked], max_tokens=max_tokens)

    async def converse(
        self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int = 256
    ) -> ChatReply:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_completion_tokens": max_tokens,
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        body |= self.extra_body
        session = await self._session()
        arrived = time.monotonic()
        async with session.slots:
            timer = PromptTimer()
            self.usage.queued_s += timer.began - arrived
            try:
                return await self._complete_with_retries(session, body, timer)
            except _AttemptFailed as error:
                # ChatError is raised outside: the chained exceptions could contain the key.
                failed = error
        self.usage.failures += 1
        raise ChatError(
            f"{self.model} at {self.url}: {failed} (attempts: {timer.attempts}, in "
            f"{timer.elapsed():.1f} s). {failed.remedy}",
            caused_by_prompt=failed.caused_by_prompt,
            prompt_tokens=timer.prompt_tokens,
            reply_tokens=timer.reply_tokens,
            cost=timer.cost,
        )

    # ------------------------------------------------------------------------------- attempts

    async def _complete_with_retries(
        self, session: _Session, body: dict[str, Any], timer: PromptTimer
    ) -> ChatReply:
        async for attempt in self._retrying(timer):
            with attempt:
                waited = await self._rate_limiter.wait()
                timer.waited += waited
                self.usage.queued_s += waited
                timer.attempts += 1
                self.usage.requests += 1
                answer = await self._send(session, body, self.patience_s - timer.elapsed())
                reply = self._reply(answer, session, timer)
                self.usage.seconds += timer.elapsed()
                return reply
        raise AssertionError("tenacity returns or raises")

    def _retrying(self, timer: PromptTimer) -> AsyncRetrying:
        from tenacity import AsyncRetrying, retry_if_exception, wait_exponential_jitter

        backoff = wait_exponential_jitter(
            multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S, jitter=FIRST_PAUSE_S
        )

        def pause(state: RetryCallState) -> float:
            assert state.outcome is not None
            error = state.outcome.exception()
            return backoff(state) + (error.pause_s if isinstance(error, _AttemptFailed) else 0)

        def give_up(state: RetryCallState) -> bool:
            out_of_patience = timer.elapsed() + state.upcoming_sleep >= self.patience_s
            return state.attempt_number > self.retries or out_of_patience

        def count(state: RetryCallState) -> None:
            assert state.outcome is not None
            self.usage.retries += 1
            log.debug("%s at %s: %s", self.model, self.url, state.outcome.exception())

        def is_transient(error: BaseException) -> bool:
            return isinstance(error, _AttemptFailed) and error.transient

        return AsyncRetrying(
            retry=retry_if_exception(is_transient),
            stop=give_up,
            wait=pause,
            before_sleep=count,
            reraise=True,
        )

    async def _send(self, session: _Session, body: dict[str, Any], left_s: float) -> str:
        """Send a request and return the body of the answer.

        Raises:
            _AttemptFailed: When there is no answer, or its status is an error.
        """
        from openai import APIConnectionError, APIStatusError

        limit = min(self.timeout_s, left_s)
        try:
            async with asyncio.timeout(limit):
                # As plain text: `_reply` parses it more strictly than the library would.
                return await session.client.post(
                    "/chat/completions",
                    body=body,
                    cast_to=str,
                    options={"headers": session.headers},
                )
        except TimeoutError:
            raise _AttemptFailed(
                f"no complete answer within {limit:.3g} s",
                "The server is too slow or overloaded: lower max_connections, or raise timeout_s "
                "and patience_s",
            ) from None
        except APIStatusError as error:
            raise self._status_failure(error, session) from None
        except APIConnectionError as error:
            cause = error.__cause__ or error
            raise _AttemptFailed(
                f"the connection failed: {session.shown(f'{type(cause).__name__}: {cause}')}",
                "Is the server running, and is url right?",
            ) from None

    def _status_failure(self, error: APIStatusError, session: _Session) -> _AttemptFailed:
        status = error.status_code
        what = f"{status} {session.shown(error.response.text)}"
        if status in (401, 403):
            return _AttemptFailed(what, self._key_remedy(session), transient=False)
        if error.code in QUOTA_CODES:
            return _AttemptFailed(what, "The account's quota is used up", transient=False)
        if status < 500 and status not in TRANSIENT:
            refused = status in REFUSED
            remedy = "Check url, model and extra_body"
            return _AttemptFailed(what, remedy, transient=False, caused_by_prompt=refused)
        remedy = "See the server's log"
        if status == 429:
            remedy = "Lower max_connections or requests_per_minute, or raise retries and patience_s"
        pause_s = retry_after(error.response.headers)
        if pause_s:
            what += f" (asks to wait {pause_s:.3g} s)"
        return _AttemptFailed(what, remedy, pause_s=pause_s)

    def _key_remedy(self, session: _Session) -> str:
        if self.key_variable is None:
            return "key_variable is null, so no key was sent"
        state = "is set" if session.key else "is not set"
        return f"The key is read from the environment variable {self.key_variable}, which {state}"

    def _reply(self, answer: str, session: _Session, timer: PromptTimer) -> ChatReply:
        """Read the reply from the body of an answer.

        Raises:
            _AttemptFailed: When there is no complete reply.
        """
        try:
            completion = json.loads(answer)
            [choice] = completion["choices"]
            message, finish = choice["message"], choice["finish_reason"]
            text, refusal = message["content"], message.get("refusal")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise _AttemptFailed(
                f"the answer is not a chat completion: {session.shown(answer)!r}",
                "Is url the API's, /v1 included?",
            ) from None
        self._count_tokens(completion, timer)
        if finish == "length":
            raise _AttemptFailed(
                f"the reply was cut off at max_tokens: {session.shown(str(text))!r}",
                "Raise max_tokens of the judge or hint model, or let the model reason less",
                transient=False,
                caused_by_prompt=True,
            )
        if finish == "content_filter" or refusal:
            reason = session.shown(str(refusal or finish))
            remedy = "Reword the prompt, or use another model"
            raise _AttemptFailed(
                f"the model refused: {reason}", remedy, transient=False, caused_by_prompt=True
            )
        if not isinstance(text, str) or not text.strip():
            raise _AttemptFailed(
                f"the reply is empty (finish_reason {session.shown(str(finish))!r})",
                "Does the model have a chat template?",
            )
        text = encodable(text)  # JSON may contain a lone surrogate
        written = session.without_key(text)
        return ChatReply(written, timer.prompt_tokens, timer.reply_tokens, timer.cost)

    def _count_tokens(self, completion: dict[str, Any], timer: PromptTimer) -> None:
        """Add an answer's tokens to the usage and to the prompt's, even if its reply is rejected.

        They are paid for either way.
        """
        usage = completion.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        prompt, reply = counts.get("prompt_tokens"), counts.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(reply, int):
            self.usage.unmetered += 1
            return
        self.usage.prompt_tokens += prompt
        self.usage.reply_tokens += reply
        if self.prices is not None:
            self.usage.cost += self.prices.of(prompt, reply)
            timer.cost += self.prices.of(prompt, reply)
        timer.prompt_tokens += prompt
        timer.reply_tokens += reply

    # ------------------------------------------------------------------------------ connections

    async def _session(self) -> _Session:
        """Return the running event loop's session; connections cannot be shared between loops."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            alive = {one: kept for one, kept in self._sessions.items() if not one.is_closed()}
            session = _Session(self)
            self._sessions = alive | {loop: session}
            await anext(session.closer)
        return self._sessions[loop]


class _Session:
    """The connections of one event loop.

    Attributes:
        client: The client, which holds the connections.
        slots: Semaphore that limits the number of connections.
        key: The API key; empty for none.
        headers: Headers of every request.
        closer: Generator that closes the connections when the event loop shuts down.
    """

    def __init__(self, chat: OpenAIChat) -> None:
        from openai import AsyncOpenAI, Omit

        self.key = read_key(chat.key_variable)
        self.client = AsyncOpenAI(
            base_url=chat.url,
            api_key=self.key or "none",
            timeout=None,  # `_send` limits the whole answer, not only the gaps between its bytes
            max_retries=0,  # `_retrying` decides about retries and counts them
        )
        self.headers = {} if self.key else {"Authorization": Omit()}
        self.slots = asyncio.Semaphore(chat.max_connections)
        self.closer = close_at_the_end(self.client.close)

    def without_key(self, text: str) -> str:
        """Remove the key from a text of the server, which might repeat it."""
        return text.replace(self.key, "[key]") if self.key else text

    def shown(self, text: str) -> str:
        """Return the start of a text for an error message, on one line and without the key."""
        safe = " ".join(self.without_key(text).split())
        return safe if len(safe) <= SHOWN else f"{safe[:SHOWN]}…"


class _AttemptFailed(Exception):
    """An attempt gave no complete reply.

    Attributes:
        remedy: Advice for the user.
        transient: Whether another attempt may succeed.
        pause_s: Seconds that the server asks to wait before it.
        caused_by_prompt: Whether the endpoint works but does not answer this prompt.
    """

    def __init__(
        self,
        what: str,
        remedy: str,
        *,
        transient: bool = True,
        pause_s: float = 0.0,
        caused_by_prompt: bool = False,
    ) -> None:
        super().__init__(what)
        self.remedy = remedy
        self.transient = transient
        self.pause_s = pause_s
        self.caused_by_prompt = caused_by_prompt


def _check_json(extra_body: dict[str, Any] | None) -> None:
    try:
        json.dumps(extra_body)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"extra_body cannot be sent as JSON: {error}") from error
