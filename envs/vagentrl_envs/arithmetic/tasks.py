"""The problems of the ladder as tasks, in words or as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from vagentrl.datasets import Fields, TaskFiles
from vagentrl.environment import Split
from vagentrl.errors import ConfigError
from vagentrl.interactions import Task, Tasks
from vagentrl.types import IMAGE_PLACEHOLDER

DATA = Path(__file__).parent / "data"
RUNGS = (1, 2, 3, 4, 5, 6, 7)
_SIZE = (140, 28)  # pixels; whole patches of the Qwen-VL family
_SCALE = 2
_ASKED = f"{IMAGE_PLACEHOLDER}\nWhat is it?"


class ArithmeticTasks(Tasks):
    """Problems of arithmetic that rise in difficulty; ``scripts/make_arithmetic.py`` made them.

    The rungs are sums of two digits (1), differences up to 20 (2), a two-digit number plus a digit
    (3), sums (4) and differences (5) of two-digit numbers, products up to 12 * 12 (6), and two
    operations (7). A problem is in one split only, in whichever order its numbers are written.

    Args:
        rungs: The rungs to draw from.
        observation: Whether a problem is shown as ``text`` or as an ``image``.
    """

    def __init__(
        self,
        rungs: Sequence[int] = RUNGS,
        observation: Literal["text", "image"] = "text",
    ) -> None:
        if not rungs or not set(rungs) <= set(RUNGS):
            raise ConfigError(f"rungs is {list(rungs)}; give some of {', '.join(map(str, RUNGS))}")
        if observation not in ("text", "image"):
            raise ConfigError(f"observation is {observation!r}; give text or image")
        self.observation = observation
        files = [str(DATA / f"rung_{rung}.jsonl.gz") for rung in sorted(set(rungs))]
        self._rows = TaskFiles(files, fields=Fields(split="split"))

    def count(self, split: Split) -> int:
        return self._rows.count(split)

    def task(self, split: Split, index: int) -> Task:
        task = self._rows.task(split, index)
        if self.observation == "text":
            return task
        shown = picture(task.interaction["problem"])
        return replace(task, messages=({"role": "user", "content": _ASKED},), images=(shown,))


def picture(problem: str) -> Image.Image:
    """A problem in black on white, in the letters that come with Pillow."""
    font = ImageFont.load_default_imagefont()
    width, height = (side // _SCALE for side in _SIZE)
    drawn = Image.new("RGB", (width, height), "white")
    left, top, right, bottom = font.getbbox(problem)
    start = ((width - (right - left)) // 2, (height - (bottom - top)) // 2)
    ImageDraw.Draw(drawn).text(start, problem, "black", font)
    return drawn.resize(_SIZE, Image.Resampling.NEAREST)
