import numpy as np
import pytest

from tests.envs.navigation.rooms import room, two_rooms
from vagentrl_envs.navigation.house import House
from vagentrl_envs.navigation.kinds import FURNITURE, OBJECTS
from vagentrl_envs.navigation.raycaster import Raycaster
from vagentrl_envs.navigation.textures import floor_atlas, sprite_atlas, wall_atlas

RED = (212, 34, 34)
"""The ball's colour in full light."""


def picture(house: House, x: float, y: float, angle: float, size: int = 101) -> np.ndarray:
    return np.asarray(Raycaster(size, size, 90).picture(house, x, y, angle)).astype(int)


def is_red(pixels: np.ndarray) -> np.ndarray:
    """The ball's pixels at any distance: much more red than anything else."""
    return (pixels[..., 0] > 100) & (pixels[..., 1:] < pixels[..., :1] * 0.3).all(-1)


def columns_of_ball(pixels: np.ndarray) -> list[int]:
    return np.flatnonzero(is_red(pixels).any(0)).tolist()


def test_a_thing_ahead_is_in_the_middle_and_as_wide_as_its_distance_makes_it():
    # 0.7 m wide, 2 m ahead; 90 degrees of view: 101 pixels show 4 m at 2 m, so 17.7 are the ball's.
    columns = columns_of_ball(picture(room(("ball", 2.0, 3.0)), 2.0, 1.0, 0))
    assert columns[0] + columns[-1] == pytest.approx(100, abs=1)
    assert len(columns) == pytest.approx(17.7, abs=1)


def test_it_stands_on_the_floor():
    # The eye is 1.1 m high and the ball 2 m ahead: its foot is 1.1 / 2 of half the picture below
    # the middle, its top 0.4 / 2.
    rows = np.flatnonzero(is_red(picture(room(("ball", 2.0, 3.0)), 2.0, 1.0, 0)).any(1))
    assert rows[0] == pytest.approx(50.5 + 50.5 * 0.2, abs=1.5)
    assert rows[-1] == pytest.approx(50.5 + 50.5 * 0.55, abs=1.5)


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_what_is_to_the_right_is_on_the_right(angle: int):
    ahead, right = 1.5, 0.7
    sine, cosine = np.sin(np.radians(angle)), np.cos(np.radians(angle))
    ball = ("ball", 2 + ahead * sine + right * cosine, 2 + ahead * cosine - right * sine)
    columns = columns_of_ball(picture(room(ball), 2.0, 2.0, angle))
    assert np.mean(columns) == pytest.approx(50.5 + 50.5 * right / ahead, abs=1.5)


def test_nothing_is_drawn_of_what_is_behind_the_eye_or_a_wall():
    assert columns_of_ball(picture(room(("ball", 2.0, 3.0)), 2.0, 1.0, 180)) == []
    behind_wall = two_rooms(("ball", 6.25, 3.25))
    assert columns_of_ball(picture(behind_wall, 2.0, 3.25, 90)) == []
    through_doorway = two_rooms(("ball", 6.25, 1.5))
    assert columns_of_ball(picture(through_doorway, 2.0, 1.5, 90))


def test_a_wall_hides_the_part_of_a_thing_that_it_covers():
    # The doorway's northern edge is at y = 2; half of the ball is north of the line to it.
    eye = (2.0, 1.5)
    ball_y = 1.5 + 0.5 * (6.0 - 2.0) / (4.0 - 2.0)  # where that line is at x = 6
    columns = columns_of_ball(picture(two_rooms(("ball", 6.0, ball_y)), *eye, 90))
    # 0.7 m at 4 m are 8.8 pixels; the right half of them is seen, from the door's edge on.
    assert len(columns) == pytest.approx(4.4, abs=1)
    assert columns[0] == pytest.approx(50.5 - 50.5 * 0.25, abs=1)


def test_a_nearer_thing_covers_a_further_one():
    house = room(("ball", 2.0, 3.5), ("fridge", 2.0, 2.5))
    assert columns_of_ball(picture(house, 2.0, 0.5, 0)) == []


def test_the_wall_is_as_high_as_its_distance_makes_it():
    # 2 m from the wall: it reaches 1.4 / 2 of half the picture up, and 1.1 / 2 down.
    pixels = picture(room(("ball", 0.5, 0.5)), 2.0, 2.0, 0, size=200)
    floor, wall = floor_atlas()[0], wall_atlas()[0]
    colors = {tuple(int(c) for c in v.tobytes()[:3]) for v in np.unique(wall)}
    rows = [row for row in range(200) if tuple(pixels[row, 100]) in colors]
    assert rows[0] == pytest.approx(100 - 70, abs=2)
    assert rows[-1] == pytest.approx(100 + 55, abs=2)
    below = {tuple(int(c) for c in v.tobytes()[:3]) for v in np.unique(floor)}
    assert tuple(pixels[190, 100]) in below


def test_the_floor_moves_with_the_agent():
    house = room(("ball", 0.5, 0.5))
    one, other = picture(house, 2.0, 1.0, 0), picture(house, 2.25, 1.0, 0)
    assert (one[80:] != other[80:]).any()
    again = picture(house, 3.0, 1.0, 0)  # the pattern repeats after a metre
    assert (one[70:, 50] == again[70:, 50]).mean() > 0.9


@pytest.mark.parametrize("size", [(16, 16), (84, 84), (101, 57), (64, 128)])
def test_any_size_can_be_drawn(size: tuple[int, int]):
    image = Raycaster(*size, 90).picture(room(("ball", 2.0, 3.0)), 2.0, 1.0, 45)
    assert (image.size, image.mode) == (size, "RGB")
    assert len(image.getcolors(1 << 20) or []) > 10


def test_a_renderer_draws_another_house_after_the_first():
    renderer = Raycaster(64, 64, 90)
    first, second = room(("ball", 2.0, 3.0)), room(("lamp", 2.0, 3.0))
    before = renderer.picture(first, 2.0, 1.0, 0).tobytes()
    assert renderer.picture(second, 2.0, 1.0, 0).tobytes() != before
    assert renderer.picture(first, 2.0, 1.0, 0).tobytes() == before


def test_everything_has_a_picture_of_its_own_that_fills_most_of_its_box():
    atlas = sprite_atlas()
    assert set(atlas) == {kind.name for kind in (*FURNITURE, *OBJECTS)}
    for name, levels in atlas.items():
        assert [len(level[0]) for level in levels] == [64, 32, 16, 8]
        assert (levels[0][0] != 0).mean() > 0.25, name
        assert (levels[-1][0] != 0).any(), name
    looks = {name: levels[0][0].tobytes() for name, levels in atlas.items()}
    assert len(set(looks.values())) == len(looks)
