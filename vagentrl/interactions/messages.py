"""Reading messages, and shortening text that is shown to the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def last_reply(messages: Sequence[Mapping[str, Any]]) -> str:
    """Text of the last message of the assistant; empty if there is none.

    The content may be a text, or a list of content blocks whose texts are joined.
    """
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return text_of(message.get("content"))
    return ""


def text_of(content: object) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    blocks = [block for block in content if isinstance(block, Mapping)]
    return "".join(str(block.get("text") or "") for block in blocks)


def shortened(text: str, limit: int) -> str:
    """At most about `limit` characters of a text: its two ends, and how many are left out."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 3, limit // 3
    left_out = len(text) - head - tail
    return f"{text[:head]} [{left_out} characters left out] {text[len(text) - tail :]}"
