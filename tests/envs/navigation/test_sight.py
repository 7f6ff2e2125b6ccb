import numpy as np
import pytest

from tests.envs.navigation.rooms import room, two_rooms
from vagentrl_envs.navigation.house import House
from vagentrl_envs.navigation.sight import Camera, Sight
from vagentrl_envs.navigation.view import DIRECTIONS, Sighting


def seen(house: House, x: float, y: float, angle: float, fov: float = 90, thing: int = 0) -> bool:
    sight = Sight(house, Camera(fov, 1.0))
    [[[found]]] = sight.seen(np.array([(x, y)]), np.array([angle]), np.array([thing]))
    return bool(found)


def test_a_thing_is_seen_in_the_direction_in_which_it_is():
    house = room(("ball", 2.25, 3.25))
    assert [seen(house, 2.25, 0.75, angle) for angle in (0, 90, 180, 270)] == [1, 0, 0, 0]


def test_a_wider_field_of_view_shows_more():
    house = room(("ball", 3.75, 2.25))  # 1.5 m to the right and 1 m ahead: 56 degrees
    assert not seen(house, 2.25, 1.25, 0, fov=90)
    assert seen(house, 2.25, 1.25, 0, fov=120)


def test_a_wall_hides_what_is_behind_it_except_in_the_doorway():
    house = two_rooms(("ball", 6.25, 1.5))
    assert seen(house, 2.25, 1.5, 90)  # through the doorway, which is 1 to 2 m north
    assert not seen(house, 2.25, 3.25, 90)


def test_a_doorway_is_seen_and_hides_nothing():
    house = two_rooms(("ball", 6.25, 1.5))
    assert seen(house, 2.25, 1.5, 90, thing=1)
    assert not seen(house, 2.25, 1.5, 270, thing=1)


@pytest.mark.parametrize(("between", "hidden"), [("shelf", True), ("vase", False)])
def test_a_nearer_thing_hides_a_further_one_if_it_is_higher_and_wider(between: str, hidden: bool):
    # The clock is 1.8 m high, the vase 0.9 m: the eye, at 1.1 m, looks over it.
    house = room(("clock", 2.25, 3.75), (between, 2.25, 1.75))
    assert seen(house, 2.25, 0.75, 0) != hidden


def test_what_stands_beside_the_line_of_sight_hides_nothing():
    house = room(("clock", 2.25, 3.75), ("shelf", 3.25, 1.75))
    assert seen(house, 2.25, 0.75, 0)


def test_a_low_thing_right_ahead_is_below_the_picture():
    house = room(("ball", 2.25, 2.25))  # 0.7 m high, and the eye at 1.1 m
    assert not seen(house, 2.25, 1.9, 0)
    assert seen(house, 2.25, 1.25, 0)


def test_many_poses_at_once_are_like_one_at_a_time():
    house = two_rooms(("ball", 6.25, 1.5), ("sofa", 0.75, 2.75), ("shelf", 5.25, 3.25))
    rng = np.random.default_rng(0)
    eyes = rng.uniform(0.3, 3.7, (20, 2)) * (2, 1)
    angles = np.array([0.0, 45.0, 200.0])
    all_at_once = Sight(house, Camera(90, 1.0)).seen(eyes, angles, np.arange(4))
    assert 0 < all_at_once.sum() < all_at_once.size
    for p, (x, y) in enumerate(eyes):
        for a, angle in enumerate(angles):
            for thing in range(4):
                assert all_at_once[p, a, thing] == seen(house, x, y, angle, thing=thing)


@pytest.mark.parametrize(
    ("east", "north", "angle", "ahead", "right", "direction"),
    [
        (0, 2, 0, 2, 0, "ahead"),
        (0, 2, 90, 0, -2, "left"),
        (0, 2, 180, -2, 0, "back"),
        (0, 2, 270, 0, 2, "right"),
        (1, 1, 0, 1, 1, "ahead-right"),
        (-1, 1, 0, 1, -1, "ahead-left"),
        (1, -1, 0, -1, 1, "back-right"),
        (-1, -1, 0, -1, -1, "back-left"),
        (1, 0, 45, 0.7071, 0.7071, "ahead-right"),
    ],
)
def test_places_are_relative_to_where_the_agent_looks(
    east: float, north: float, angle: float, ahead: float, right: float, direction: str
):
    sighting = Sighting.of("ball", east, north, angle)
    assert (sighting.ahead, sighting.right) == pytest.approx((ahead, right), abs=1e-4)
    assert sighting.direction == direction


def test_a_direction_covers_45_degrees():
    turned = [Sighting.of("ball", np.sin(a), np.cos(a), 0) for a in np.radians((22, 23, -22, -23))]
    names = [sighting.direction for sighting in turned]
    assert names == ["ahead", "ahead-right", "ahead", "ahead-left"]
    assert len(set(DIRECTIONS)) == 8
