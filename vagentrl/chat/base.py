"""The `ChatModel` interface: a second model, prompted with text, that judges or advises."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vagentrl.errors import ConfigError

PROBE_TOKENS = 512
"""Maximum length of the reply to `ChatModel.probe`; models that reason need more than a word."""
_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)


def without_thoughts(reply: str) -> str:
    """A reply without the reasoning that some models write before it, in ``<think>`` tags.

    A reply that ends within its reasoning is empty. The opening tag may be part of the prompt, so
    that the reply begins within the reasoning.
    """
    before, closed, after = reply.rpartition("</think>")
    return (after if closed and "<think>" not in before else _THOUGHT.sub("", reply)).strip()


@dataclass(frozen=True)
class ChatReply:
    """A reply of a chat model, with its token counts and cost.

    Attributes:
        text: The reply.
        prompt_tokens: Number of tokens in the prompt, in all attempts together.
        reply_tokens: Number of tokens in the replies of all attempts.
        cost: Price of all tokens, in the currency of the model's prices.
    """

    text: str
    prompt_tokens: int = 0
    reply_tokens: int = 0
    cost: float = 0.0


class ChatModel(ABC):
    """Replies to prompts; many coroutines call `complete` concurrently."""

    @abstractmethod
    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        """Reply to a prompt.

        Args:
            prompt: The user message.
            system: The system message; empty for none.
            max_tokens: Maximum length of the reply in tokens.

        Raises:
            ChatError: When there is no complete reply after all retries.
        """

    async def converse(
        self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int = 256
    ) -> ChatReply:
        """Reply to a conversation; not every chat model can.

        Args:
            messages: In the form of OpenAI's chat completions, images as ``image_url`` blocks.
            max_tokens: Maximum length of the reply in tokens.

        Raises:
            ChatError: When there is no complete reply after all retries.
            ConfigError: When the model answers single prompts only.
        """
        raise ConfigError(
            f"{type(self).__name__} answers single prompts only; give a chat model that holds "
            "conversations, such as OpenAIChat"
        )

    async def probe(self) -> None:
        """Ask for one short reply, to see whether the model answers.

        Raises:
            ChatError: When it does not.
        """
        await self.complete("Reply with the word OK.", max_tokens=PROBE_TOKENS)

    @abstractmethod
    def identity(self) -> str:
        """Return a text with all settings that affect replies; it is part of a cache's key.

        It must not contain an API key.
        """

    def metrics(self) -> Mapping[str, float]:
        """Return totals since the model was created: requests, retries, tokens, cost, seconds."""
        return {}
