"""Hints from a chat model."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import string
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile

from vagentrl.chat import ChatModel, ask, without_thoughts
from vagentrl.errors import ChatError, ConfigError
from vagentrl.event_loops import run_in_background
from vagentrl.hints.base import Exchange, Hint, HintModel, Situation
from vagentrl.types import IMAGE_PLACEHOLDER

log = logging.getLogger(__name__)

REQUIRED = ("task", "observation")
OPTIONAL = ("history", "state")


class ChatHintModel(HintModel):
    """Asks a chat model for hints, with one prompt template to explore and one to exploit.

    Templates are text files. ``{task}`` stands for the environment's system prompt,
    ``{observation}`` for the current observation, ``{history}`` for the earlier turns, and
    ``{state}`` for the true state in words, which a text-only model needs if observations are
    images. Write literal braces as ``{{`` and ``}}``. Images are mentioned and not shown. Of a
    reply, the reasoning in ``<think>`` tags is not part of the hint.

    Args:
        model: The chat model to ask.
        exploit_template: File with the template for hints to exploit; None for the default.
        explore_template: File with the template for hints to explore; None for the default.
        max_tokens: Maximum length of a hint in tokens.
        patience_s: Seconds until a hint times out, including the time in the model's queue.
            `data.timeout_s` does not count this time.
        record: Folder in which all hints are kept. An episode that is played again, for instance
            in a resumed run, gets the recorded hints at no cost. A hint that cannot be read or
            kept there, as in a folder of another user, is asked for again. None keeps no hints.
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
        self._warned = False

    def probe(self) -> None:
        run_in_background(self.model.probe())

    @property
    def replays(self) -> bool:
        return self._record is not None

    @property
    def waits_s(self) -> float:
        return self.patience_s

    def hint(self, situation: Situation) -> Hint:
        prompt = self.prompt(situation)
        path = self._path(prompt, situation)
        if (recorded := self._recorded(path)) is not None:
            return Hint(recorded)  # a recorded hint costs nothing
        reply = ask(
            self.model,
            prompt,
            max_tokens=self.max_tokens,
            patience_s=self.patience_s,
            owner="ChatHintModel",
        )
        text = without_thoughts(reply.text)
        if not text:
            raise ChatError(
                "the hint model wrote an empty hint"
                + (", only its reasoning; raise max_tokens" if reply.text.strip() else ""),
                prompt_tokens=reply.prompt_tokens,
                reply_tokens=reply.reply_tokens,
                cost=reply.cost,
            )
        if path is not None:
            try:
                _write(path, text)
            except OSError as error:
                self._warn(error)
        return Hint(text, None, reply.prompt_tokens, reply.reply_tokens, reply.cost)

    def _recorded(self, path: Path | None) -> str | None:
        """The recorded hint; None if there is none that can be read."""
        if path is None:
            return None
        try:
            return path.read_bytes().decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            log.warning("hints are not recorded, so a replay may get others: %s", error)
        self._warned = True

    def prompt(self, situation: Situation) -> str:
        """Return the prompt for a hint."""
        environment = situation.environment
        state = environment.state()
        filled = self._templates[situation.kind].format(
            task=environment.system_prompt(),
            observation=situation.observation.text,
            state="not known" if state is None else state.natural,
            history="\n\n".join(map(_format_turn, situation.past)) or "nothing yet",
        )
        return filled.replace(IMAGE_PLACEHOLDER, "(an image that is not shown to you)")

    def _path(self, prompt: str, situation: Situation) -> Path | None:
        """Return the hint's file, which is unique to the prompt, the model and the turn."""
        if self._record is None:
            return None
        about = [self.model.identity(), self.max_tokens, prompt, *situation.seeds]
        digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
        return self._record / digest[:2] / f"{digest}.txt"


def read_template(kind: str, path: str | None) -> str:
    """Read a template, the default or the user's, and check its placeholders."""
    source = files("vagentrl.hints") / "templates" / f"{kind}.txt" if path is None else Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{kind}_template {path!r} cannot be read: {error}") from error
    try:
        found = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise ConfigError(
            f"{kind}_template {path!r}: {error}; double a brace that is meant literally"
        ) from error
    missing = [name for name in REQUIRED if name not in found]
    unknown = sorted(found - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        raise ConfigError(
            f"{kind}_template {path!r} lacks {missing} and has the unknown {unknown}; the "
            f"placeholders {REQUIRED} are required and {OPTIONAL} optional; double a brace that is "
            "meant literally"
        )
    return text


def _format_turn(exchange: Exchange) -> str:
    saw = [exchange.observation.text, exchange.observation.hint]
    lines = ["The agent saw:", *filter(None, saw), "The agent replied:", exchange.reply.text]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    """Write a file atomically, because several processes may write the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(text.encode())
    os.replace(file.name, path)
