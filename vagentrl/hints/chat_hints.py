"""Hints from a chat model behind an endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import string
import threading
from collections.abc import Coroutine
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from vagentrl.chat import ChatModel, ChatReply
from vagentrl.errors import ChatError, ConfigError
from vagentrl.hints.base import Exchange, Hint, HintModel, Situation

T = TypeVar("T")
REQUIRED = ("task", "observation")
OPTIONAL = ("history", "state")


class ChatHintModel(HintModel):
    """Asks a chat model, with one of two templates.

    Templates are text files. ``{task}`` stands for the system prompt of the environment,
    ``{observation}`` for what the agent sees now, ``{history}`` for the turns before, and
    ``{state}`` for the true state in words, which a model that reads no images cannot do without
    where observations are images. A brace that is meant as one is doubled.

    Args:
        model: Writes the hints.
        exploit_template: File with the template for hints to exploit; None for ours.
        explore_template: File with the template for hints to explore; None for ours.
        max_tokens: Tokens that a hint may have.
        patience_s: Seconds that a hint may take in all, also those in which it waits for its turn
            at the model; then there is none. `data.timeout_s` does not count them.
        record: Folder in which every hint is kept. An episode that is played again, in a resumed
            run for instance, gets the same hints out of it and is not charged for them twice.
            None asks anew.
    """

    def __init__(
        self,
        model: ChatModel,
        exploit_template: str | None = None,
        explore_template: str | None = None,
        max_tokens: int = 160,
        patience_s: float = 300.0,
        record: str | None = None,
    ) -> None:
        if max_tokens < 1:
            raise ConfigError(f"ChatHintModel.max_tokens is {max_tokens}; give 1 or more")
        if not patience_s > 0:
            raise ConfigError(f"ChatHintModel.patience_s is {patience_s}; give more than 0")
        self.model = model
        self.max_tokens = max_tokens
        self.patience_s = patience_s
        self._templates = {
            "exploit": read_template("exploit", exploit_template),
            "explore": read_template("explore", explore_template),
        }
        self._record = None if record is None else Path(record)

    @property
    def replays(self) -> bool:
        return self._record is not None

    @property
    def waits_s(self) -> float:
        return self.patience_s

    def hint(self, situation: Situation) -> Hint:
        prompt = self.prompt(situation)
        path = self._path(prompt, situation)
        if path is not None and path.is_file():
            return Hint(path.read_bytes().decode())  # which costs nothing
        reply = run_in_background(self._ask(prompt))
        text = reply.text.strip()
        if not text:
            raise ChatError("the hint model wrote an empty hint")
        hint = Hint(text, None, reply.prompt_tokens, reply.reply_tokens, reply.cost)
        if path is not None:
            _write(path, text)
        return hint

    async def _ask(self, prompt: str) -> ChatReply:
        try:
            async with asyncio.timeout(self.patience_s):
                return await self.model.complete(prompt, max_tokens=self.max_tokens)
        except TimeoutError as error:
            raise ChatError(
                f"no hint within {self.patience_s:g} s, the time in which it waited for its turn "
                "included; raise ChatHintModel.patience_s, or allow the model more connections "
                "and requests, or play fewer episodes at once"
            ) from error

    def prompt(self, situation: Situation) -> str:
        """What the model is asked."""
        environment = situation.environment
        state = environment.state()
        return self._templates[situation.kind].format(
            task=environment.system_prompt(),
            observation=situation.observation.text,
            state="not known" if state is None else state.natural,
            history="\n\n".join(map(_written, situation.past)) or "nothing yet",
        )

    def _path(self, prompt: str, situation: Situation) -> Path | None:
        """Where the hint is kept: another place for another prompt, model, episode or turn."""
        if self._record is None:
            return None
        about = [self.model.identity(), self.max_tokens, prompt, *situation.seeds]
        digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
        return self._record / digest[:2] / f"{digest}.txt"


def read_template(kind: str, path: str | None) -> str:
    """A template's text, ours or from a file, once its placeholders are as they should be."""
    source = files("vagentrl.hints") / "templates" / f"{kind}.txt" if path is None else Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{kind}_template {path!r} cannot be read: {error}") from error
    try:
        found = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise ConfigError(
            f"{kind}_template {path!r}: {error}; double a brace that is meant as one"
        ) from error
    missing = [name for name in REQUIRED if name not in found]
    unknown = sorted(found - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        raise ConfigError(
            f"{kind}_template {path!r} lacks {missing} and has the unknown {unknown}; its "
            f"placeholders are {REQUIRED}, and if wanted {OPTIONAL}; double a brace that is meant "
            "as one"
        )
    return text


def _written(exchange: Exchange) -> str:
    saw = [exchange.observation.text, exchange.observation.hint]
    lines = ["The agent saw:", *filter(None, saw), "The agent replied:", exchange.reply.text]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    """Whole or not at all, also when several processes write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(text.encode())
    os.replace(file.name, path)


# ------------------------------------------------------------------------- from threads to asyncio

_starting = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def run_in_background(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine in the one event loop that all environments of a process share.

    So the connections of a client are used again, its limits hold for all of them together, and as
    many hints are on their way as there are environments waiting.
    """
    with _starting:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, name="hints", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _loops[0]).result()
