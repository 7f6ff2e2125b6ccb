"""Draws episodes as pictures: frames with captions, or an animated GIF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from vagentrl.errors import ShapeError

MARGIN = 8
MOST_LINES = 24
"""Maximum number of lines of a text; the middle of a longer text is left out."""
FONT_SIZE = 12
LINE_HEIGHT = 16
INK, BORDER, FRAME_BORDER = "#202020", "#c8c8c8", "#606060"


@dataclass(frozen=True)
class Panel:
    """One step of an episode.

    Attributes:
        frame: The picture.
        heading: Text above the frame.
        caption: Text below the frame.
    """

    frame: Image.Image
    heading: str = ""
    caption: str = ""


def episode_picture(title: str, panels: Sequence[Panel], per_row: int = 6) -> Image.Image:
    """Draw the panels in a grid, each with a border, under a title."""
    if not panels:
        raise ShapeError("there are no panels to draw; give at least one")
    width = max(panel.frame.width for panel in panels) + 2 * MARGIN
    rows = [
        _row(panels[start : start + per_row], width) for start in range(0, len(panels), per_row)
    ]
    return stacked([_text(title, rows[0].width, bold=True), *rows])


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """Stack pictures vertically on a white background."""
    size = max(p.width for p in pictures), sum(p.height for p in pictures)
    whole, top = Image.new("RGB", size, "white"), 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    return whole


def text_frame(text: str, least_width: int, most_width: int) -> Image.Image:
    """Draw a text in a fixed-width font; long lines are wrapped."""
    longest = max((len(line) for line in text.expandtabs(4).splitlines()), default=0)
    width = round(longest * _font().getlength("M")) + 2 * MARGIN
    return _text(text, min(max(width, least_width), most_width))


def save_gif(frames: Sequence[Image.Image], path: str | Path, ms_per_frame: int = 500) -> None:
    """Write the frames as an endlessly looping GIF; the last frame is shown three times as long."""
    if not frames:
        raise ShapeError(f"no frames to write to {path}; give at least one")
    durations = [ms_per_frame] * (len(frames) - 1) + [3 * ms_per_frame]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


def _row(panels: Sequence[Panel], width: int) -> Image.Image:
    """Draw panels side by side, with headings, frames and captions aligned."""
    headings = [_text(panel.heading, width, bold=True) for panel in panels]
    captions = [_text(panel.caption, width) for panel in panels]
    frame_top = max(heading.height for heading in headings)
    caption_top = frame_top + max(panel.frame.height for panel in panels)
    height = caption_top + max(caption.height for caption in captions)
    row = Image.new("RGB", (len(panels) * (width + MARGIN) + MARGIN, height + MARGIN), "white")
    draw = ImageDraw.Draw(row)
    for column, panel in enumerate(panels):
        left = MARGIN + column * (width + MARGIN)
        row.paste(headings[column], (left, 0))
        row.paste(captions[column], (left, caption_top))
        draw.rectangle((left, 0, left + width - 1, height - 1), outline=BORDER)
        x, y = left + MARGIN, frame_top
        right, bottom = x + panel.frame.width, y + panel.frame.height
        draw.rectangle((x - 1, y - 1, right, bottom), outline=FRAME_BORDER)
        row.paste(panel.frame, (x, y))
    return row


def _text(text: str, width: int, *, bold: bool = False) -> Image.Image:
    """Draw lines of text with a margin around them."""
    font = _font(bold)
    columns = max(1, int((width - 2 * MARGIN) / font.getlength("M")))
    written = text.expandtabs(4).splitlines()
    lines = _shortened([part for line in written for part in _wrapped(line, columns)])
    block = Image.new("RGB", (width, len(lines) * LINE_HEIGHT + 2 * MARGIN), "white")
    draw = ImageDraw.Draw(block)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + number * LINE_HEIGHT), line, fill=INK, font=font)
    return block


def _wrapped(line: str, columns: int) -> list[str]:
    """Wrap a line; a line that fits keeps all its white space."""
    return [line] if len(line) <= columns else wrap(line, columns)


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_LINES:
        return lines
    half = MOST_LINES // 2
    left_out = f"[… {len(lines) - 2 * half + 1} lines …]"
    return [*lines[:half], left_out, *lines[len(lines) - half + 1 :]]


@cache
def _font(bold: bool = False) -> ImageFont.FreeTypeFont:
    from matplotlib import get_data_path  # matplotlib ships a fixed-width font

    name = "DejaVuSansMono-Bold.ttf" if bold else "DejaVuSansMono.ttf"
    return ImageFont.truetype(Path(get_data_path(), "fonts", "ttf", name), FONT_SIZE)
