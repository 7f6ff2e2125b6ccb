"""Conversations with an interaction, as an environment holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from vagentrl.interactions import BaseInteraction

Answer = tuple[bool, Any, float, dict[str, Any]]


async def converse(
    interaction: BaseInteraction, replies: Sequence[str], **row: Any
) -> list[Answer]:
    """The answers to the replies of one conversation, which is finalized."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Solve it."}]
    name = await interaction.start_interaction(None, **row)
    answers: list[Answer] = []
    try:
        for reply in replies:
            messages.append({"role": "assistant", "content": reply})
            answer = await interaction.generate_response(name, messages, **row)
            answers.append(answer)  # pyright: ignore[reportArgumentType]
            messages.append({"role": "user", "content": answer[1]})
    finally:
        await interaction.finalize_interaction(name)
    return answers


def talk(interaction: BaseInteraction, *replies: str, **row: Any) -> list[Answer]:
    """`converse` in an event loop of its own."""
    return asyncio.run(converse(interaction, replies, **row))


def ask(interaction: BaseInteraction, reply: str, **row: Any) -> Answer:
    """The answer to a single reply."""
    return talk(interaction, reply, **row)[0]
