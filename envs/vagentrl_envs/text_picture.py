"""Pictures of text, for people who watch an episode."""

from __future__ import annotations

import textwrap
from functools import cache

from PIL import Image, ImageDraw, ImageFont

COLUMNS = 88
ROWS = 40
_SIZE = 13
_LINE = 18
_MARGIN = 12
_WIDTH = 640
_PAPER, _INK, _RULE = (252, 251, 247), (34, 38, 46), (178, 84, 52)


def draw_text(text: str) -> Image.Image:
    """Text on paper, its first line set off; lines beyond `ROWS` are left out."""
    lines = [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ") or [""]
    ]
    if len(lines) > ROWS:
        lines = [*lines[: ROWS - 1], "…"]
    picture = Image.new("RGB", (_WIDTH, 2 * _MARGIN + _LINE * max(len(lines), 1)), _PAPER)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, 4, picture.height), fill=_RULE)
    for row, line in enumerate(lines):
        colour = _RULE if row == 0 else _INK
        draw.text((_MARGIN, _MARGIN + row * _LINE), line, fill=colour, font=_font())
    return picture


@cache
def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(_SIZE)
