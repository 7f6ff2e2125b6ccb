"""Pictures in the messages of OpenAI's chat completions."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from PIL.Image import Image


def picture_block(image: Image, longest_side: int | None = None) -> dict[str, Any]:
    """A picture as an ``image_url`` block of a message, with its PNG in a data URL.

    Args:
        image: The picture.
        longest_side: Pixels to which the longer side is reduced if it is longer; None for no limit.
    """
    if longest_side is not None and max(image.size) > longest_side:
        image = image.copy()  # an environment's picture must not change
        image.thumbnail((longest_side, longest_side))
    image.save(png := BytesIO(), "PNG")
    url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def illustrated(
    text: str, images: Sequence[Image], longest_side: int | None = None
) -> list[dict[str, Any]]:
    """A conversation of one message, which shows pictures and then a text.

    Args:
        text: What follows the pictures.
        images: The pictures.
        longest_side: See `picture_block`.
    """
    blocks = [picture_block(image, longest_side) for image in images]
    return [{"role": "user", "content": [*blocks, {"type": "text", "text": text}]}]
