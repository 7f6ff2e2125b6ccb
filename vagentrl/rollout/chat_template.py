"""Finds out what a chat template writes around messages, by rendering sentinel texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from vagentrl.errors import ConfigError
from vagentrl.types import IMAGE_PLACEHOLDER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    Message = dict[str, Any]

SYSTEM, USER, REPLY, AGAIN = "(the system)", "(the user)", "(a reply)", "(the user again)"


@dataclass(frozen=True)
class ChatTemplate:
    """The text that a chat template writes around messages.

    Attributes:
        before_user: The start of a conversation without a system message, up to the user's text.
        around_system: The text before the system prompt, and the text between the system prompt
            and the user's first message; None if the template has no system role.
        before_reply: The text between a user message and the reply.
        after_reply: The text between a reply and the next user message, starting with the end of
            turn.
        image: The text that stands for one image in a user message; None for a text-only template.
        trims_system: Whether the template strips white space around the system prompt.
        trims_user: Whether the template strips white space around a user message.
        trims_reply: Whether the template strips white space around an earlier reply.
    """

    before_user: str
    around_system: tuple[str, str] | None
    before_reply: str
    after_reply: str
    image: str | None
    trims_system: bool
    trims_user: bool
    trims_reply: bool


def conversation(
    system: str, texts: Sequence[str], replies: Sequence[str], *, with_images: bool
) -> list[Message]:
    """Messages for a chat template.

    Args:
        system: The system prompt; empty for none.
        texts: The user messages, with a placeholder for each image.
        replies: The reply to each user message but the last.
        with_images: Write user messages as the content blocks of a vision-language template.
    """
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for number, text in enumerate(texts):
        messages.append({"role": "user", "content": _blocks(text) if with_images else text})
        if number < len(replies):
            messages.append({"role": "assistant", "content": replies[number]})
    return messages


def render(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> str:
    """The messages as the template writes them, up to where the next reply starts.

    Raises:
        ConfigError: When the template cannot render these messages.
    """
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError) as error:
        raise ConfigError(f"the chat template cannot render {messages}: {error}") from error
    assert isinstance(text, str)
    return text


def read_chat_template(tokenizer: PreTrainedTokenizerBase, *, with_images: bool) -> ChatTemplate:
    """Find out what the tokenizer's chat template writes around messages.

    Raises:
        ConfigError: When there is no template, or when it changes the text of earlier turns once
            they are history.
    """
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the tokenizer has no chat template; use an instruct model, or set "
            "tokenizer.chat_template and save it with the model"
        )

    before_user, before_reply, after_reply, before_next_reply = _around(tokenizer, "", with_images)
    if before_reply != before_next_reply:
        raise ConfigError(
            "the chat template writes one text before a new reply, and another before the same "
            "reply once it is history:\n"
            f"  before a new reply     {before_next_reply!r}\n"
            f"  before an earlier one  {before_reply!r}\n"
            "A turn can then not be added without changing earlier tokens. Set a template that "
            "leaves the history unchanged (for thinking models, one that neither adds nor drops "
            "thoughts)"
        )
    around_system = None
    try:
        before_system, after_system, *rest = _around(tokenizer, SYSTEM, with_images)
        if rest == [before_reply, after_reply, before_next_reply]:
            around_system = (before_system, after_system)
    except ConfigError:  # the template refuses the system role, or drops its text
        pass

    padded_system = f" {SYSTEM} " if around_system else ""
    padded = conversation(
        padded_system, [f" {USER} ", AGAIN], [f" {REPLY} "], with_images=with_images
    )
    rendered = render(tokenizer, padded)
    image = None
    if with_images:
        shown = conversation("", [f"{USER}{IMAGE_PLACEHOLDER}{AGAIN}"], [], with_images=True)
        image = _cut(render(tokenizer, shown), [USER, AGAIN])[1]
    return ChatTemplate(
        before_user=before_user,
        around_system=around_system,
        before_reply=before_reply,
        after_reply=after_reply,
        image=image,
        trims_system=padded_system not in rendered,
        trims_user=f" {USER} " not in rendered,
        trims_reply=f" {REPLY} " not in rendered,
    )


def _around(tokenizer: PreTrainedTokenizerBase, system: str, with_images: bool) -> list[str]:
    messages = conversation(system, [USER, AGAIN], [REPLY], with_images=with_images)
    sentinels = [system, USER, REPLY, AGAIN] if system else [USER, REPLY, AGAIN]
    return _cut(render(tokenizer, messages), sentinels)


def _cut(rendered: str, sentinels: list[str]) -> list[str]:
    """Split the text at the sentinels; n sentinels give n + 1 pieces."""
    pattern = "|".join(re.escape(sentinel) for sentinel in sentinels)
    found = re.findall(pattern, rendered)
    if found != sentinels:
        raise ConfigError(
            f"the chat template should write the messages {sentinels} once and in order, but "
            f"writes {found}: {rendered!r}"
        )
    return re.split(pattern, rendered)


def _blocks(text: str) -> list[dict[str, str]]:
    first, *others = text.split(IMAGE_PLACEHOLDER)
    blocks = [{"type": "text", "text": first}]
    for other in others:
        blocks += [{"type": "image"}, {"type": "text", "text": other}]
    return blocks
