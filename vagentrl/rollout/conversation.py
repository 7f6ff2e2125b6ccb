"""One episode's context, as its turns go by."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from vagentrl.contexts import Context
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import Observation, Prompt

if TYPE_CHECKING:
    from PIL.Image import Image

_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


class _Exchange(NamedTuple):
    """A turn as later ones see it."""

    observation: Observation
    reply_ids: tuple[int, ...]


class Conversation:
    """Writes prompts for an episode; remembers no more turns than later ones will see.

    Args:
        renderer: Text and images to tokens.
        context: What is seen of the past.
        system: The system prompt.

    Attributes:
        ids: Tokens of the context before the next reply.
        images: Its images.
        turns: Replies so far.
    """

    def __init__(self, renderer: Renderer, context: Context, system: str) -> None:
        self.renderer = renderer
        self.context = context
        self.system = system
        self.ids: list[int] = []
        self.images: list[Image] = []
        self.turns = 0
        self._past: deque[_Exchange] = deque(maxlen=context.memory)
        self._start = 0  # the first turn in `ids`
        self._reply_ids: tuple[int, ...] = ()  # of the last reply
        self._continues = False  # whether `ids` is what the next prompt follows

    def ask(self, observation: Observation) -> Prompt:
        """Put an observation before the next reply."""
        start = self.context(self.turns)
        if self._continues and start == self._start:
            prompt = Prompt(self._next(self._reply_ids, observation), observation.images)
        else:
            self.ids, self.images = [], []
            prompt = self._whole(start, observation)
        self.ids += prompt.ids
        self.images += prompt.images
        self._start, self._observation = start, observation
        return prompt

    def reply(self, reply_ids: tuple[int, ...]) -> None:
        """Add the tokens of the agent's reply, as they were sampled."""
        self.ids += reply_ids
        self._reply_ids = reply_ids
        self.turns += 1
        remembered = self._remembered(reply_ids)
        self._past.append(_Exchange(self._observation, remembered))
        self._continues = remembered == reply_ids

    def whole(self) -> Prompt:
        """The present context as one prompt, to start a row with."""
        return Prompt(tuple(self.ids), tuple(self.images), whole=True)

    def _next(self, reply_ids: tuple[int, ...], observation: Observation) -> tuple[int, ...]:
        """What follows a reply, its end of turn included unless the reply brought it."""
        ended = reply_ids[-1:] == (self.renderer.end_of_turn,)
        return self.renderer.next(observation, ended=ended)

    def _whole(self, start: int, observation: Observation) -> Prompt:
        past = list(self._past)[len(self._past) - (self.turns - start) :]
        seen = [*(exchange.observation for exchange in past), observation]
        ids = self.renderer.first(self.system, seen[0])
        for exchange, answer in zip(past, seen[1:], strict=True):
            ids += exchange.reply_ids + self._next(exchange.reply_ids, answer)
        return Prompt(ids, tuple(image for each in seen for image in each.images), whole=True)

    def _remembered(self, reply_ids: tuple[int, ...]) -> tuple[int, ...]:
        """How later turns see a reply."""
        if self.context.thoughts == "keep":
            return reply_ids
        text = self.renderer.decode(reply_ids)
        stripped = _THOUGHT.sub("", text)
        return reply_ids if stripped == text else self.renderer.encode_text(stripped)
