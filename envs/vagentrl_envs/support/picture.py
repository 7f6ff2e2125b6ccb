"""Draws a conversation, with what the telephone shows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from vagentrl_envs.support.phone import World

WIDTH, COLUMNS, LINE, PAD = 620, 56, 20, 10
"""Width in pixels, characters of a line in a bubble, height of a line, and margin, in pixels."""
LINES = 40
"""Lines of the conversation that the picture has room for; the newest are shown."""
COLORS = {"agent": (214, 232, 255), "customer": (232, 232, 232), "tool": (255, 243, 205)}
INK, PAPER, SCREEN = (20, 20, 20), (255, 255, 255), (40, 44, 52)


def draw_dialogue(messages: Sequence[tuple[str, str]], world: World) -> Image.Image:
    """The newest messages as bubbles, the agent's on the right, above the phone's screen.

    Args:
        messages: Who wrote it (a key of `COLORS`) and what, oldest first.
        world: The world to show below.
    """
    font = ImageFont.load_default(15)
    wrapped = [(who, textwrap.wrap(_plain(text), COLUMNS) or [""]) for who, text in messages]
    while sum(len(lines) + 1 for _, lines in wrapped) > LINES and len(wrapped) > 1:
        wrapped = wrapped[1:]
    wrapped = [(who, lines[: LINES - 1]) for who, lines in wrapped]
    bar = 2 * LINE + PAD
    height = sum(len(lines) * LINE + 2 * PAD for _, lines in wrapped) + bar + PAD
    picture = Image.new("RGB", (WIDTH, height), PAPER)
    canvas = ImageDraw.Draw(picture)
    top = PAD
    for who, lines in wrapped:
        width = max(canvas.textlength(line, font=font) for line in lines) + 2 * PAD
        left = WIDTH - PAD - width if who == "agent" else PAD
        left += 4 * PAD if who == "tool" else 0
        bottom = top + len(lines) * LINE + PAD
        canvas.rounded_rectangle((left, top, left + width, bottom), 8, fill=COLORS[who])
        for number, line in enumerate(lines):
            canvas.text((left + PAD, top + PAD // 2 + number * LINE), line, fill=INK, font=font)
        top = bottom + PAD
    canvas.rectangle((0, height - bar, WIDTH, height), fill=SCREEN)
    small = ImageFont.load_default(13)
    for number, text in enumerate((f"phone: {world.screen()}", world.phone.settings())):
        corner = (PAD, height - bar + PAD // 2 + number * LINE)
        canvas.text(corner, text, fill=PAPER, font=small)
    return picture


def _plain(text: str) -> str:
    """Text without what the font cannot draw."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:600])
