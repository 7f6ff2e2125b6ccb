"""What it takes to ask an endpoint, whatever it speaks: key, address, prices, pace, accounts."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from vagentrl.errors import ConfigError


@dataclass(frozen=True)
class Prices:
    """What a million tokens cost, in any currency.

    Args:
        prompt: A million tokens read.
        reply: A million tokens written.
    """

    prompt: float
    reply: float

    def of(self, prompt_tokens: int, reply_tokens: int) -> float:
        return (self.prompt * prompt_tokens + self.reply * reply_tokens) / 1e6


@dataclass
class Spent:
    """What a chat model has done and taken so far.

    Attributes:
        requests: Tries that were sent.
        retries: Those of them that followed a failed one.
        failures: Prompts that got no whole reply in the end.
        prompt_tokens: Tokens read, as the server counts them; failed tries included if it tells.
        reply_tokens: Tokens written.
        unmetered: Replies of which the server did not tell the tokens.
        cost: Price of the tokens.
        seconds: From the first try to the whole reply, summed over replies.
        queued_s: Waited for a connection or for `requests_per_minute`, summed over prompts.
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


class Clock:
    """What a prompt has taken, without what it waited for its turn."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.waited = 0.0
        self.tries = 0

    def spent(self) -> float:
        return time.monotonic() - self.began - self.waited


class Pace:
    """Lets requests go one after the other, from whichever thread they come."""

    def __init__(self, per_minute: float | None) -> None:
        self._interval_s = 60 / per_minute if per_minute else 0.0
        self._free_at = 0.0
        self._lock = threading.Lock()

    async def wait(self) -> float:
        """Wait for one's turn; the seconds that it took."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._free_at)
            self._free_at = turn + self._interval_s
        if turn > now:
            await asyncio.sleep(turn - now)
        return turn - now


def retry_after(headers: Mapping[str, str]) -> float:
    """What the server wants us to wait, in seconds; 0 when it does not say."""
    said = headers.get("retry-after", "")
    try:
        return max(0.0, float(said))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except ValueError:
        return 0.0


def read_key(variable: str | None) -> str:
    """The API key, or nothing.

    Raises:
        ConfigError: When it cannot be sent; a library would show it in its own complaint.
    """
    key = os.environ.get(variable, "").strip() if variable is not None else ""
    if not re.fullmatch(r"[!-~]*", key):
        raise ConfigError(
            f"the environment variable {variable} holds {len(key)} characters, not all of them "
            "printable ASCII without spaces; a key has no others"
        )
    return key


def check_key_variable(name: str | None) -> None:
    named = name is None or re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", name)
    if not named or (name is not None and len(name) >= 16 and "_" not in name):
        raise ConfigError(
            f"key_variable has {len(name or '')} characters and is not the name of an environment "
            "variable, so it may be a key and is not shown here. Set an environment variable to "
            "the key, and key_variable to its name, such as OPENAI_API_KEY; and should this have "
            "been a key, revoke it if the configuration was shared"
        )


def check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query:
        raise ConfigError(
            f"url holds a user, a password or a query, which may be secret and is not shown here "
            f"(host {parts.hostname}); give the plain address, and the key by key_variable"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url is {url!r}; give one such as http://127.0.0.1:8000/v1")


def check_positive(**limits: float) -> None:
    for name, limit in limits.items():
        if not limit > 0:
            raise ConfigError(f"{name} is {limit}; give more than 0")
