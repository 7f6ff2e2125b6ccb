from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vagentrl.errors import ShapeError
from vagentrl.viewer.pictures import episode_strip, save_gif

FRAMES = [Image.new("RGB", (60, 40), color) for color in ("red", "lime", "blue")]


def test_a_strip_shows_the_frames_in_order():
    strip = np.asarray(episode_strip(FRAMES))
    middle = strip[strip.shape[0] // 2]
    assert [tuple(middle[x].tolist()) for x in (38, 106, 174)] == [
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
    ]


def test_captions_are_wrapped_below_their_frame():
    bare = episode_strip(FRAMES)
    short = episode_strip(FRAMES, ["up"])
    long = episode_strip(FRAMES, ["", "one two three four five six", "supercalifragilistic"])
    assert bare.width == short.width == long.width
    assert bare.height < short.height < long.height
    pixels = np.asarray(long)
    below = pixels[bare.height :]
    assert (below[:, :70] == 255).all()  # nothing under the first frame
    assert (below[:, 78:136] < 100).any()


def test_a_gif_holds_every_frame(tmp_path: Path):
    save_gif(FRAMES, tmp_path / "episode.gif", ms_per_frame=100)
    with Image.open(tmp_path / "episode.gif") as gif:
        assert gif.n_frames == 3  # pyright: ignore[reportAttributeAccessIssue]


def test_no_frames_make_no_picture(tmp_path: Path):
    with pytest.raises(ShapeError, match="0 frames"):
        episode_strip([])
    with pytest.raises(ShapeError, match="no frames"):
        save_gif([], tmp_path / "empty.gif")
