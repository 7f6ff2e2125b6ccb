"""Reads what `generate_response` returns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from io import BytesIO
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from vagentrl.errors import EnvError, seen
from vagentrl.image_files import fetch_image
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, harmless

MOST_METRICS = 32
"""The number of metrics that are read from one answer."""
LONGEST_NAME = 64
"""The number of characters of a metric's name."""


class Answer(NamedTuple):
    """The interaction's answer to a reply.

    Attributes:
        over: Whether the conversation is over.
        content: The answer as later messages show it to the interaction.
        observation: The answer as the agent sees it.
        score: The turn's score.
        metrics: The numbers of the fourth item.
    """

    over: bool
    content: str
    observation: Observation
    score: float
    metrics: dict[str, float]


def read_answer(interaction: object, returned: object) -> Answer:
    """Check and read what an interaction's `generate_response` returned.

    Raises:
        EnvError: When it cannot be used; the message shows it.
    """
    wrong = _Wrong(interaction)
    if not isinstance(returned, tuple | list) or len(returned) != 4:
        raise wrong("", returned, "return (should_terminate, response, score, metrics)")
    over, response, score, metrics = returned
    if not isinstance(over, bool | np.bool_):
        raise wrong(" as should_terminate", over, "return True or False")
    content, observation = _read_response(response, wrong)
    metrics = {} if metrics is None else metrics  # verl never looks at them
    if not isinstance(metrics, Mapping):
        raise wrong(" as metrics", metrics, "return a dictionary")
    return Answer(bool(over), content, observation, _read_score(score, wrong), _numbers(metrics))


def read_final_score(interaction: object, returned: object) -> float:
    """Check and read what an interaction's `calculate_score` returned.

    Raises:
        EnvError: When it is no finite number.
    """
    return _read_score(returned, _Wrong(interaction, "calculate_score"))


def _read_score(score: object, wrong: _Wrong) -> float:
    number = _finite(score)
    if number is None:
        raise wrong(" as score", score, "return a finite number")
    return number


def _finite(value: object) -> float | None:
    """A finite number as a float; None for anything else."""
    if not isinstance(value, Real | np.bool_):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


class _Wrong:
    """Makes the errors about one interaction's method."""

    def __init__(self, interaction: object, method: str = "generate_response") -> None:
        self.name = f"{type(interaction).__name__}.{method}"

    def __call__(self, place: str, value: object, wanted: str) -> EnvError:
        return EnvError(f"{self.name} returned {seen(value)}{place}; {wanted}")


def _read_response(response: object, wrong: _Wrong) -> tuple[str, Observation]:
    if isinstance(response, str):
        return response, Observation(harmless(response))
    if not isinstance(response, list):
        raise wrong(" as response", response, "return a text, or a list of content blocks")
    text, images = "", []
    for block in response:
        match block:
            case {"type": "text", "text": str(part)}:
                text += harmless(part)
            case {"type": "image", "image": image}:
                text += IMAGE_PLACEHOLDER
                images.append(_open(image, wrong))
            case _:
                wanted = 'a block is {"type": "text", "text": …} or {"type": "image", "image": …}'
                raise wrong(" as a content block", block, wanted)
    return text, Observation(text, tuple(images))


def _open(image: object, wrong: _Wrong) -> Image.Image:
    wanted = "give a PIL image, the path of an image's file, or its bytes"
    if isinstance(image, Image.Image):
        return _as_shown(image)
    if not isinstance(image, str | Path | bytes | bytearray):
        raise wrong(" as an image", image, wanted)
    source = BytesIO(image) if isinstance(image, bytes | bytearray) else image
    try:
        with Image.open(source) as opened:
            return _as_shown(opened)
    except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise wrong(" as an image", image, f"which cannot be opened ({error}); {wanted}") from error


def _as_shown(image: Image.Image) -> Image.Image:
    """The image in RGB and in its own size, with transparent pixels blended with white."""
    return fetch_image(image, factor=1, min_pixels=1, max_pixels=image.width * image.height)


def _numbers(metrics: Mapping[Any, Any]) -> dict[str, float]:
    """The finite numbers, under names that a logger accepts."""
    numbers = {
        name: number
        for key, value in metrics.items()
        if (name := _metric_name(key)) and (number := _finite(value)) is not None
    }
    return dict(list(numbers.items())[:MOST_METRICS])


def _metric_name(key: object) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", str(key))[:LONGEST_NAME].strip("_.")
