"""Episodes as pictures: a strip of captioned frames, or a moving one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vagentrl.errors import ShapeError

_MARGIN = 8


def episode_strip(
    frames: Sequence[Image.Image], captions: Sequence[str] = (), font_size: int = 13
) -> Image.Image:
    """The frames side by side, each caption wrapped under its frame.

    Fewer captions than frames leave the last frames without one.
    """
    if not frames or len(captions) > len(frames):
        raise ShapeError(
            f"{len(frames)} frames and {len(captions)} captions make no strip; "
            "give at least one frame, and at most one caption for each"
        )
    font = ImageFont.load_default(size=font_size)
    wrapped = [
        _wrap(caption, font, frame.width)
        for frame, caption in zip_longest(frames, captions, fillvalue="")
        if isinstance(frame, Image.Image)
    ]
    top = max(frame.height for frame in frames) + 2 * _MARGIN
    line_height = round(1.3 * font_size)
    most_lines = max(len(lines) for lines in wrapped)
    strip = Image.new(
        "RGB",
        (
            sum(frame.width for frame in frames) + _MARGIN * (len(frames) + 1),
            top + most_lines * line_height + (_MARGIN if most_lines else 0),
        ),
        "white",
    )
    draw = ImageDraw.Draw(strip)
    left = _MARGIN
    for frame, lines in zip(frames, wrapped, strict=True):
        strip.paste(frame, (left, _MARGIN))
        for number, line in enumerate(lines):
            draw.text((left, top + number * line_height), line, fill=(32, 32, 32), font=font)
        left += frame.width + _MARGIN
    return strip


def save_gif(frames: Sequence[Image.Image], path: str | Path, ms_per_frame: int = 500) -> None:
    """The frames one after the other, for ever; the last one stays three times as long."""
    if not frames:
        raise ShapeError(f"no frames to write to {path}; give at least one")
    durations = [ms_per_frame] * (len(frames) - 1) + [3 * ms_per_frame]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


def _wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Lines no wider than `width` pixels; a word that is wider is broken."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            if line and font.getlength(f"{line} {word}") <= width:
                line = f"{line} {word}"
                continue
            if line:
                lines.append(line)
            while len(word) > 1 and font.getlength(word) > width:
                fitting = next(
                    n for n in range(len(word) - 1, 0, -1)
                    if n == 1 or font.getlength(word[:n]) <= width
                )  # fmt: skip
                lines.append(word[:fitting])
                word = word[fitting:]
            line = word
        lines.append(line)
    return lines


def text_frame(text: str, size: int = 14) -> Image.Image:
    """A text observation as a picture, in a font whose columns line up."""
    font = ImageFont.load_default(size)
    lines = text.split("\n") or [""]
    column = max(font.getlength(character) for character in set(text) | {"M"})
    width = int(column * max(map(len, lines))) + size
    picture = Image.new("RGB", (width, (len(lines) + 1) * (size + 4)), "white")
    draw = ImageDraw.Draw(picture)
    for row, line in enumerate(lines):
        for number, character in enumerate(line):  # cell by cell: the font is proportional
            place = (size / 2 + number * column, size / 2 + row * (size + 4))
            draw.text(place, character, fill="black", font=font)
    return picture
