"""Hints from a chat model."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from vagentrl.chat import ChatModel, PromptFile, ask, illustrated, without_thoughts
from vagentrl.errors import ChatError, ConfigError
from vagentrl.event_loops import run_in_background
from vagentrl.hints.base import Exchange, Hint, HintModel, Situation
from vagentrl.pictures import digest
from vagentrl.types import IMAGE_PLACEHOLDER, Observation

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).parent / "templates"
NEEDED = ("task", "observation")
KNOWN = ("history", "state", "detail")
NOT_SHOWN = "(an image that is not shown to you)"
PICTURES = "These are the last pictures that the agent saw, from the first to the last.\n\n"
"""What the model reads between the pictures and the prompt."""
DETAIL = {
    True: "You may name the exact action.",
    False: "Name the kind of step and leave the details to the agent: no exact action, query, code "
    "or number.",
}
"""What ``$detail`` stands for, by `concrete`."""


class ChatHintModel(HintModel):
    """Asks a chat model for hints, with one prompt template to explore and one to exploit.

    Templates are text files. ``$task`` stands for the environment's system prompt,
    ``$observation`` for the current observation, ``$history`` for the earlier turns, ``$state`` for
    the true state in words, which a text-only model needs if observations are images, and
    ``$detail`` for how concrete a hint may be. A dollar sign is written ``$$``. Of a reply, the
    reasoning in ``<think>`` tags is not part of the hint.

    The default templates follow the purposes of the publication (VEG, appendix B): to exploit, one
    step that brings the agent furthest; to explore, several different ways to go on, one of them
    less promising.

    Args:
        model: The chat model to ask.
        exploit_template: File with the template for hints to exploit; None for the default.
        explore_template: File with the template for hints to explore; None for the default.
        concrete: Whether a hint may name an exact action. The publication's may not.
        images: Whether the model sees the pictures in the observations; it must be able to hold
            conversations. If not, the prompt mentions them.
        max_images: Maximum number of pictures that it sees, the episode's last ones.
        max_image_side: Pixels to which the longer side of a picture is reduced if it is longer.
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
        concrete: bool = False,
        images: bool = False,
        max_images: int = 4,
        max_image_side: int = 1024,
        max_tokens: int = 160,
        patience_s: float = 300.0,
        record: str | None = None,
    ) -> None:
        counts = {
            "max_tokens": max_tokens,
            "max_images": max_images,
            "max_image_side": max_image_side,
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"ChatHintModel.{name} is {count}; give 1 or more")
        if images and type(model).converse is ChatModel.converse:
            raise ConfigError(
                f"ChatHintModel.images is true, but {type(model).__name__} answers single prompts "
                "of text only; give a chat model that holds conversations, such as OpenAIChat"
            )
        if not patience_s > 0:
            raise ConfigError(f"ChatHintModel.patience_s is {patience_s}; give more than 0")
        self.model = model
        self.concrete = concrete
        self.images = images
        self.max_images = max_images
        self.max_image_side = max_image_side
        self.max_tokens = max_tokens
        self.patience_s = patience_s
        self._templates = {
            kind: PromptFile(path, TEMPLATES / f"{kind}.txt", needed=NEEDED, known=KNOWN)
            for kind, path in (("exploit", exploit_template), ("explore", explore_template))
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
        prompt, images = self.prompt(situation), self.shown(situation)
        path = self._path(prompt, images, situation)
        if (recorded := self._recorded(path)) is not None:
            return Hint(recorded)  # a recorded hint costs nothing
        reply = ask(
            self.model,
            illustrated(PICTURES + prompt, images, self.max_image_side) if images else prompt,
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
        """Return the prompt for a hint, without the pictures."""
        environment = situation.environment
        state = environment.state()
        seen = [*(exchange.observation for exchange in situation.past), situation.observation]
        *past, now = _with_pictures_named(seen, len(self.shown(situation)))
        turns = map(_format_turn, past, situation.past)
        filled = self._templates[situation.kind].fill(
            task=environment.system_prompt(),
            observation=now,
            state="not known" if state is None else state.natural,
            history="\n\n".join(turns) or "nothing yet",
            detail=DETAIL[self.concrete],
        )
        return filled.replace(IMAGE_PLACEHOLDER, NOT_SHOWN)  # the agent may write it

    def shown(self, situation: Situation) -> list[Image]:
        """Return the pictures that the model sees, the oldest first."""
        if not self.images:
            return []
        past = [image for each in situation.past for image in each.observation.images]
        return [*past, *situation.observation.images][-self.max_images :]

    def _path(self, prompt: str, images: Sequence[Image], situation: Situation) -> Path | None:
        """Return the hint's file, which is unique to what the model is shown, and to the turn."""
        if self._record is None:
            return None
        about = [self.model.identity(), self.max_tokens, prompt, *situation.seeds]
        about += [digest(image).hex() for image in images]
        name = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
        return self._record / name[:2] / f"{name}.txt"


def _with_pictures_named(observations: Sequence[Observation], shown: int) -> list[str]:
    """The observations' texts, with a name in place of each picture.

    Args:
        observations: An episode's observations.
        shown: The number of pictures that the model sees, which are the last ones.
    """
    numbers = itertools.count(1 + shown - sum(len(seen.images) for seen in observations))

    def name(_: re.Match[str]) -> str:
        number = next(numbers)
        return f"(picture {number})" if number > 0 else NOT_SHOWN

    return [re.sub(re.escape(IMAGE_PLACEHOLDER), name, seen.text) for seen in observations]


def _format_turn(text: str, exchange: Exchange) -> str:
    saw = filter(None, (text, exchange.observation.hint))
    return "\n".join(["The agent saw:", *saw, "The agent replied:", exchange.reply.text])


def _write(path: Path, text: str) -> None:
    """Write a file atomically, because several processes may write the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(text.encode())
    os.replace(file.name, path)
