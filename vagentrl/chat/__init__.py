"""Chat models: second models that judge or advise the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vagentrl.chat.asking import ask
from vagentrl.chat.base import ChatModel, ChatReply, without_thoughts
from vagentrl.chat.pictures import illustrated, picture_block
from vagentrl.chat.prompt_file import PromptFile

if TYPE_CHECKING:
    from vagentrl.chat.openai import OpenAIChat

__all__ = [
    "ChatModel",
    "ChatReply",
    "OpenAIChat",
    "PromptFile",
    "ask",
    "illustrated",
    "picture_block",
    "without_thoughts",
]


def __getattr__(name: str) -> Any:
    # Imported on first use, because most runs need no second model.
    if name != "OpenAIChat":
        raise AttributeError(f"module 'vagentrl.chat' has no attribute {name!r}")
    from vagentrl.chat.openai import OpenAIChat

    return OpenAIChat
