"""Asking a chat model from code that waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from vagentrl.chat.base import ChatModel, ChatReply
from vagentrl.errors import ChatError
from vagentrl.event_loops import run_in_background


def ask(
    model: ChatModel,
    prompt: str | Sequence[Mapping[str, Any]],
    *,
    max_tokens: int,
    patience_s: float,
    owner: str,
) -> ChatReply:
    """Ask a chat model and wait, while other threads ask it at the same time.

    Args:
        model: The chat model.
        prompt: The user message, or a conversation as for `ChatModel.converse`.
        max_tokens: Maximum length of the reply in tokens.
        patience_s: Seconds until the reply must be there, including the time in the model's queue.
        owner: The class with the setting ``patience_s``, for the error.

    Raises:
        ChatError: When there is no complete reply in time.
    """

    async def complete() -> ChatReply:
        async with asyncio.timeout(patience_s):
            if isinstance(prompt, str):
                return await model.complete(prompt, max_tokens=max_tokens)
            return await model.converse(prompt, max_tokens=max_tokens)

    try:
        return run_in_background(complete())
    except TimeoutError as error:
        raise ChatError(
            f"{owner} got no reply within {patience_s:g} s, including the time in the model's "
            f"queue; raise {owner}.patience_s, allow the model more connections and requests, or "
            "play fewer episodes at once"
        ) from error
