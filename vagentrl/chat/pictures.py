"""Pictures in the messages of OpenAI's chat completions."""

from __future__ import annotations

import base64
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
