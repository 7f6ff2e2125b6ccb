"""Chat models: second models, asked in words, that judge or advise the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vagentrl.chat.base import ChatModel, ChatReply

if TYPE_CHECKING:
    from vagentrl.chat.openai import OpenAIChat

__all__ = ["ChatModel", "ChatReply", "OpenAIChat"]


def __getattr__(name: str) -> Any:
    # Imported when it is named: most runs ask no second model.
    if name != "OpenAIChat":
        raise AttributeError(f"module 'vagentrl.chat' has no attribute {name!r}")
    from vagentrl.chat.openai import OpenAIChat

    return OpenAIChat
