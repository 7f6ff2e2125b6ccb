from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vagentrl.errors import ShapeError
from vagentrl.viewer import pictures
from vagentrl.viewer.pictures import (
    FRAME_BORDER,
    LINE_HEIGHT,
    MARGIN,
    MOST_LINES,
    Panel,
    episode_picture,
    save_gif,
    text_frame,
)

COLORS = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255)}
FRAMES = [Image.new("RGB", (60, 40), color) for color in COLORS]
COLUMN = 60 + 3 * MARGIN  # the frame, a margin on both sides of it, and one between panels
TEXT = LINE_HEIGHT + 2 * MARGIN  # a line of text


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


def has_ink(area: np.ndarray) -> bool:
    return bool((area < 100).any())


def test_panels_are_in_rows_in_their_order_and_in_equal_columns():
    picture = episode_picture("", [Panel(frame) for frame in (*FRAMES, *FRAMES)], per_row=4)
    assert picture.width == 4 * COLUMN + MARGIN
    shown = pixels(picture)
    where = {
        color: [tuple(place) for place in np.argwhere((shown == value).all(-1))[[0, -1]].tolist()]
        for color, value in COLORS.items()
    }
    # the top is three times 2 margins: of title, heading and, in the second row, caption and gap
    first, second = 4 * MARGIN, 4 * MARGIN + 40 + 2 * MARGIN + MARGIN + 2 * MARGIN
    left = 2 * MARGIN
    assert where == {
        "red": [(first, left), (first + 39, left + 3 * COLUMN + 59)],
        "lime": [(first, left + COLUMN), (second + 39, left + 59)],
        "blue": [(first, left + 2 * COLUMN), (second + 39, left + COLUMN + 59)],
    }


def test_every_frame_has_a_border():
    shown = pixels(episode_picture("", [Panel(Image.new("RGB", (60, 40), "white"))]))
    grey = tuple(int(FRAME_BORDER[n : n + 2], 16) for n in (1, 3, 5))
    places = np.argwhere((shown == grey).all(-1))
    (top, left), (bottom, right) = places.min(0), places.max(0)
    assert (bottom - top + 1, right - left + 1) == (42, 62)
    assert len(places) == 2 * (62 + 40)


def test_title_heading_and_caption_are_where_they_belong():
    bare = episode_picture("", [Panel(FRAMES[0])] * 2)
    heading = episode_picture("", [Panel(FRAMES[0], "turn 1"), Panel(FRAMES[0])])
    caption = episode_picture("", [Panel(FRAMES[0]), Panel(FRAMES[0], caption="up")])
    title = episode_picture("seed 7", [Panel(FRAMES[0])] * 2)
    assert {p.height - bare.height for p in (heading, caption, title)} == {LINE_HEIGHT}
    top, middle = 2 * MARGIN, MARGIN + COLUMN
    assert has_ink(pixels(title)[MARGIN:top, :])
    inside = pixels(heading)[top + 1 : top + TEXT - 1]
    assert has_ink(inside[:, MARGIN + 1 : middle - MARGIN - 1])
    assert not has_ink(inside[:, middle + 1 : -MARGIN - 1])
    under = pixels(caption)[-MARGIN - TEXT + 2 : -MARGIN - 1]
    assert has_ink(under[:, middle + 1 : -MARGIN - 1])
    assert not has_ink(under[:, MARGIN + 1 : middle - MARGIN - 1])


def test_texts_are_wrapped_to_the_width_of_their_column():
    assert pictures._wrapped("one two three", 7) == ["one two", "three"]
    assert pictures._wrapped("supercalifragilistic", 9) == ["supercali", "fragilist", "ic"]
    assert pictures._wrapped("  #_P#", 6) == ["  #_P#"]  # a grid stays in its columns


def test_of_a_long_text_the_beginning_and_the_end_are_shown():
    lines = [f"line {number}" for number in range(100)]
    shown = pictures._shortened(lines)
    assert len(shown) == MOST_LINES == 24
    assert shown == [*lines[:12], "[… 77 lines …]", *lines[-11:]]
    assert pictures._shortened(lines[:24]) == lines[:24]


def test_a_text_frame_is_as_wide_as_its_lines_within_bounds():
    assert text_frame("#_#", 100, 200).width == 100
    assert 100 < text_frame("#" * 20, 100, 200).width < 200
    assert text_frame("word " * 99, 100, 200).width == 200
    assert text_frame("", 100, 200).height == 2 * MARGIN
    assert text_frame("#_#\n\n_P_", 100, 200).height == 3 * LINE_HEIGHT + 2 * MARGIN


def test_a_gif_holds_every_frame(tmp_path: Path):
    save_gif(FRAMES, tmp_path / "episode.gif", ms_per_frame=100)
    with Image.open(tmp_path / "episode.gif") as gif:
        assert gif.n_frames == 3  # pyright: ignore[reportAttributeAccessIssue]


def test_no_frames_make_no_picture(tmp_path: Path):
    with pytest.raises(ShapeError, match="no panels"):
        episode_picture("", [])
    with pytest.raises(ShapeError, match="no frames"):
        save_gif([], tmp_path / "empty.gif")
