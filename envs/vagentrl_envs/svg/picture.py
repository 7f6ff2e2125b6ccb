"""Draws SVG with resvg."""

from __future__ import annotations

import io
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
from PIL import Image

from vagentrl.errors import ConfigError
from vagentrl_envs.svg.markup import Refused


def check_renderer() -> None:
    """Raise unless the libraries of the extra ``svg`` are installed."""
    if find_spec("resvg_py") is None or find_spec("defusedxml") is None:
        raise ConfigError("drawings need resvg-py and defusedxml: pip install 'vagentrl[svg]'")


@lru_cache(maxsize=64)
def drawn(markup: str, size: int) -> np.ndarray:
    """`(size, size, 4)` of uint8: red, green, blue and opacity of a drawing without paper.

    Args:
        markup: What `clean` returned; nothing else may be given.
        size: Pixels of each side. A drawing that is not square is centred.

    Raises:
        Refused: When the renderer fails.
    """
    import resvg_py  # pyright: ignore[reportMissingImports]

    sized = markup.replace("<svg ", f'<svg width="{size}" height="{size}" ', 1)
    try:
        png = resvg_py.svg_to_bytes(
            svg_string=sized, width=size, height=size, skip_system_fonts=True
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise Refused("the renderer cannot draw it") from error
    pixels = np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGBA"))
    pixels.setflags(write=False)
    return pixels


def on_paper(markup: str | None, size: int) -> np.ndarray:
    """`(size, size, 3)` of float from 0 to 1: a drawing on white paper, or the paper alone."""
    if markup is None:
        return np.ones((size, size, 3))
    pixels = drawn(markup, size) / 255.0
    opacity = pixels[..., 3:]
    return pixels[..., :3] * opacity + (1 - opacity)


def as_image(picture: np.ndarray) -> Image.Image:
    """The image of values from 0 to 1, `(height, width, 3)`."""
    return Image.fromarray((picture * 255).round().astype(np.uint8))
