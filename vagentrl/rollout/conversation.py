"""Builds the context of an episode turn by turn."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vagentrl.contexts import Context
from vagentrl.pictures import check_unchanged
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import Example, Observation, Prompt

if TYPE_CHECKING:
    from PIL.Image import Image

_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


class _Exchange(NamedTuple):
    """An observation and the reply to it, as later turns see them."""

    observation: Observation
    reply_ids: tuple[int, ...]


class Conversation:
    """Writes the prompts of an episode. It stores only the turns that later prompts will show.

    Args:
        renderer: Turns text and images into tokens.
        context: Which earlier turns a prompt shows.
        system: The system prompt.
        examples: Exchanges that every prompt shows after the system prompt, whatever the context
            shows of the turns.

    Attributes:
        ids: Tokens of the context before the next reply.
        images: Images of that context.
        turns: Number of replies so far.
    """

    def __init__(
        self,
        renderer: Renderer,
        context: Context,
        system: str,
        examples: Sequence[Example] = (),
    ) -> None:
        self.renderer = renderer
        self.context = context
        self.system = system
        self.examples = examples
        self.ids: list[int] = []
        self.images: list[Image] = []
        self.turns = 0
        self._past: deque[_Exchange] = deque(maxlen=context.memory)
        self._start = 0  # index of the first turn in `ids`
        self._reply_ids: tuple[int, ...] = ()  # tokens of the last reply
        self._continues = False  # whether the next prompt may simply be appended to `ids`

    def ask(self, observation: Observation) -> Prompt:
        """Put an observation before the next reply.

        Raises:
            EnvError: When it shows an image object again, with other pixels than before.
        """
        for image in observation.images:
            check_unchanged(image)
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
        """Append the sampled tokens of the agent's reply."""
        self.ids += reply_ids
        self._reply_ids = reply_ids
        self.turns += 1
        remembered = self._remembered(reply_ids)
        self._past.append(_Exchange(self._observation, remembered))
        self._continues = remembered == reply_ids

    def whole(self) -> Prompt:
        """The current context as one prompt, to start a new row with."""
        return Prompt(tuple(self.ids), tuple(self.images), whole=True)

    def _next(self, reply_ids: tuple[int, ...], observation: Observation) -> tuple[int, ...]:
        """Tokens from the end of a reply to the next one, with the end of turn if it is missing."""
        ended = reply_ids[-1:] == (self.renderer.end_of_turn,)
        return self.renderer.next(observation, ended=ended)

    def _whole(self, start: int, observation: Observation) -> Prompt:
        """A prompt with the system prompt, the examples, the turns from `start` on, and the
        observation."""
        past = list(self._past)[len(self._past) - (self.turns - start) :]
        seen = [*(exchange.observation for exchange in past), observation]
        ids = self.renderer.first(self.system, seen[0], self.examples)
        for exchange, answer in zip(past, seen[1:], strict=True):
            ids += exchange.reply_ids + self._next(exchange.reply_ids, answer)
        shown = [*(example.observation for example in self.examples), *seen]
        return Prompt(ids, tuple(image for each in shown for image in each.images), whole=True)

    def _remembered(self, reply_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens of a reply as later turns see them: without thoughts if they are stripped."""
        if self.context.thoughts == "keep":
            return reply_ids
        text = self.renderer.decode(reply_ids)
        stripped = _THOUGHT.sub("", text)
        return reply_ids if stripped == text else self.renderer.encode_text(stripped)
