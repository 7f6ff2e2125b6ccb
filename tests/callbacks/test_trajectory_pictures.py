from dataclasses import replace

import pytest

from tests import toy
from vagentrl.callbacks import TrajectoryPictures
from vagentrl.callbacks.trajectory_pictures import FRAME_WIDTH, _caption, trajectory_picture
from vagentrl.errors import ConfigError

MARGIN = 8


@pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
def test_every_turn_and_the_end_have_a_frame_wide_enough_for_a_caption(images: bool):
    picture = trajectory_picture(toy.play([toy.WAIT, toy.GO], images=images))
    assert picture.width >= 3 * FRAME_WIDTH + 4 * MARGIN


def test_small_frames_are_enlarged_by_a_whole_number_without_blurring():
    # 4 left: a gradient 140 pixels wide, enlarged twice, after a margin
    frame = toy.picture(4)
    picture = trajectory_picture(toy.play([toy.GO], images=True))
    for x, y in ((0, 0), (70, 13), (139, 27)):
        for dx, dy in ((0, 0), (1, 1)):
            place = (MARGIN + 2 * x + dx, MARGIN + 2 * y + dy)
            assert picture.getpixel(place) == frame.getpixel((x, y))


def test_long_episodes_are_drawn_in_rows():
    short = trajectory_picture(toy.play([toy.WAIT] * 2, turn_limit=20))
    long = trajectory_picture(toy.play([toy.WAIT] * 13, turn_limit=20))
    assert long.width == 6 * FRAME_WIDTH + 7 * MARGIN
    assert long.height > 2 * short.height


def test_a_hint_is_marked_in_the_caption():
    played = toy.play([toy.GO], seed=0)
    [turn] = played.turns
    assert "told" not in _caption(turn)
    told = replace(turn, observation=replace(turn.observation, hint="Hint: Say go."))
    assert _caption(told) == "[told: Hint: Say go.]\n<answer>go</answer>\nreward +1.00"


@pytest.mark.parametrize("settings", [{"every_n_iterations": 0}, {"episodes": 0}])
def test_settings_that_draw_nothing_are_refused(settings: dict[str, int]):
    with pytest.raises(ConfigError, match="give 1 or more"):
        TrajectoryPictures(**settings)
