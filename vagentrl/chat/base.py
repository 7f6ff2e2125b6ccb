"""What a chat model is: a second model, spoken to in words, that judges or advises the agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ChatReply:
    """What a chat model said, and what it took.

    Attributes:
        text: The reply.
        prompt_tokens: Tokens read.
        reply_tokens: Tokens written.
        cost: Price of both, in the currency that the model's prices were given in.
    """

    text: str
    prompt_tokens: int = 0
    reply_tokens: int = 0
    cost: float = 0.0


class ChatModel(ABC):
    """Answers one prompt at a time, many at once."""

    @abstractmethod
    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        """Answer a prompt.

        Args:
            prompt: What is asked.
            system: What the model is told of its task.
            max_tokens: Tokens that the reply may have.

        Raises:
            ChatError: When there is no whole reply, after all retries.
        """

    @abstractmethod
    def identity(self) -> str:
        """What decides the replies, and so belongs in the key of a cache: never an API key."""

    def metrics(self) -> Mapping[str, float]:
        """Counts and sums since the model was made: requests, retries, tokens, cost, seconds."""
        return {}
