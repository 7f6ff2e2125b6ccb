"""Results of tools as content blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from PIL import Image

from vagentrl.interactions.messages import shortened

Block = dict[str, Any]
"""``{"type": "text", "text": str}`` or ``{"type": "image", "image": PIL image}``."""
_TAGS = ("<tool_response>", "</tool_response>", "<tool_call>", "</tool_call>")
_LARGEST_IMAGE = 4096
"""Pixels of the longer side; a larger image is made smaller."""


def blocks_of(result: Any, characters: int, images: int) -> list[Block]:
    """The content blocks of a result, within limits.

    Args:
        result: A text, an image, a value that JSON can express, or a list of these.
        characters: Characters of all texts; what is cut is said.
        images: Number of images; what is left out is said.
    """
    blocks: list[Block] = []
    left_out = 0
    for part in _parts(result):
        if isinstance(part, str):
            text = shortened(part, characters)
            characters -= min(len(part), characters)
            blocks.append({"type": "text", "text": _without_tags(text)})
        elif images > 0:
            images -= 1
            blocks.append({"type": "image", "image": _bounded(part)})
        else:
            left_out += 1
    if left_out:
        blocks.append({"type": "text", "text": f"[{left_out} images left out]"})
    return blocks


def response(blocks: Sequence[Block]) -> list[Block]:
    """Blocks between the tags of a tool's response."""
    opening = {"type": "text", "text": "<tool_response>\n"}
    closing = {"type": "text", "text": "\n</tool_response>"}
    return [opening, *blocks, closing]


def joined(responses: Sequence[Sequence[Block]]) -> str | list[Block]:
    """Responses as one message: a text, or content blocks if there is an image in them."""
    message: list[Block] = []
    for number, blocks in enumerate(responses):
        separator = [{"type": "text", "text": "\n"}] if number else []
        for block in [*separator, *blocks]:
            if block["type"] == "text" and message and message[-1]["type"] == "text":
                message[-1] = {"type": "text", "text": message[-1]["text"] + block["text"]}
            else:
                message.append(block)
    if len(message) == 1 and message[0]["type"] == "text":
        return message[0]["text"]
    return message


def _parts(result: Any) -> list[str | Image.Image]:
    if isinstance(result, Image.Image):
        return [result]
    if isinstance(result, (list, tuple)) and any(isinstance(one, Image.Image) for one in result):
        return [part for one in result for part in _parts(one)]
    if isinstance(result, str):
        return [result]
    try:
        return [json.dumps(result, ensure_ascii=False, default=_plain)]
    except (TypeError, ValueError, RecursionError):
        return [str(result)]


def _plain(value: Any) -> Any:
    from pydantic_core import to_jsonable_python  # pyright: ignore[reportMissingImports]

    return to_jsonable_python(value, fallback=str)


def _without_tags(text: str) -> str:
    """A text that cannot pass itself off as the end of its response, or as a call."""
    for tag in _TAGS:
        text = text.replace(tag, tag.replace("<", "&lt;"))
    return text


def _bounded(picture: Image.Image) -> Image.Image:
    picture = picture.convert("RGB")
    if max(picture.size) > _LARGEST_IMAGE:
        picture.thumbnail((_LARGEST_IMAGE, _LARGEST_IMAGE))
    return picture
