"""Parts of any endpoint client: key, URL, prices, rate limit and usage counts."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from heapq import heappop, heappush
from urllib.parse import urlsplit

from vagentrl.errors import ConfigError


@dataclass(frozen=True)
class Prices:
    """Prices per million tokens, in any currency.

    Args:
        prompt: Price of a million prompt tokens.
        reply: Price of a million reply tokens.
    """

    prompt: float
    reply: float

    def of(self, prompt_tokens: int, reply_tokens: int) -> float:
        return (self.prompt * prompt_tokens + self.reply * reply_tokens) / 1e6


@dataclass
class Usage:
    """Totals of a chat model's requests since it was created.

    Attributes:
        requests: Requests sent, retries included.
        retries: Requests that repeated a failed one.
        failures: Prompts without a complete reply after all retries.
        prompt_tokens: Prompt tokens as counted by the server, including those of failed requests
            if the server reports them.
        reply_tokens: Reply tokens as counted by the server.
        unmetered: Replies for which the server did not report token counts.
        cost: Price of the tokens.
        seconds: Time from the first request to the complete reply, summed over replies.
        queued_s: Time spent waiting for a connection or for `requests_per_minute`, summed over
            prompts.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    unmetered: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    queued_s: float = 0.0


class PromptTimer:
    """Counts a prompt's attempts and its time, without the time spent waiting for the rate limit.

    Attributes:
        began: Monotonic time at which the prompt got a connection.
        waited: Seconds spent waiting for the rate limit.
        attempts: Number of requests sent so far.
        prompt_tokens: Prompt tokens of all attempts so far.
        reply_tokens: Reply tokens of all attempts so far.
        cost: Price of these tokens.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.waited = 0.0
        self.attempts = 0
        self.prompt_tokens = 0
        self.reply_tokens = 0
        self.cost = 0.0

    def elapsed(self) -> float:
        return time.monotonic() - self.began - self.waited


class RateLimiter:
    """Spaces requests evenly, across all threads. A waiter that is cancelled gives its time back.

    Args:
        per_minute: Requests per minute; None for no limit.
    """

    def __init__(self, per_minute: float | None) -> None:
        self._interval_s = 60 / per_minute if per_minute else 0.0
        self._free_at = 0.0
        self._returned: list[float] = []  # a heap of times that cancelled waiters gave back
        self._lock = threading.Lock()

    async def wait(self) -> float:
        """Wait until the next request may be sent; return the seconds waited."""
        now = time.monotonic()
        turn = self._take(now)
        if turn > now:
            try:
                await asyncio.sleep(turn - now)
            except asyncio.CancelledError:
                with self._lock:
                    heappush(self._returned, turn)
                raise
        return turn - now

    def _take(self, now: float) -> float:
        """Take the earliest free time; a returned one that has passed is lost."""
        with self._lock:
            while self._returned:
                if (turn := heappop(self._returned)) >= now:
                    return turn
            turn = max(now, self._free_at)
            self._free_at = turn + self._interval_s
            return turn


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of the ``Retry-After`` header (a number or a date); 0 without one."""
    value = headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0


def read_key(variable: str | None) -> str:
    """Return the API key in an environment variable; empty if there is none.

    Raises:
        ConfigError: When the key cannot be sent in a header. The HTTP library's own error would
            show the key.
    """
    key = os.environ.get(variable, "").strip() if variable is not None else ""
    if not re.fullmatch(r"[!-~]*", key):
        raise ConfigError(
            f"the environment variable {variable} holds {len(key)} characters, and not all of them "
            "are printable ASCII without spaces, as in a key; correct the variable"
        )
    return key


def check_key_variable(name: str | None) -> None:
    named = name is None or re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", name)
    if not named or (name is not None and len(name) >= 16 and "_" not in name):
        raise ConfigError(
            f"key_variable has {len(name or '')} characters and is not the name of an environment "
            "variable, so it may be a key and is not shown here. Set an environment variable to "
            "the key, and key_variable to the variable's name, such as OPENAI_API_KEY. If this was "
            "a key, revoke it if the configuration was shared"
        )


def check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query:
        raise ConfigError(
            f"url contains a user, a password or a query, which may be secret and is not shown "
            f"here (host {parts.hostname}); give the plain URL, and the key with key_variable"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url is {url!r}; give a URL such as http://127.0.0.1:8000/v1")


def check_positive(**limits: float) -> None:
    for name, limit in limits.items():
        if not limit > 0:
            raise ConfigError(f"{name} is {limit}; give more than 0")
