from typing import Any

import numpy as np
import pytest

from tests.envs.navigation.rooms import room, two_rooms
from vagentrl.errors import ConfigError
from vagentrl_envs.navigation.house import Plan
from vagentrl_envs.navigation.kinds import DOORWAY, OBJECTS
from vagentrl_envs.navigation.poses import ACTIONS, FAR, Pose, Ways

SETTINGS: dict[str, Any] = {
    "rooms": 4,
    "room_size": 5.0,
    "step": 0.5,
    "furniture": 6,
    "objects": 3,
    "targets": tuple(kind.name for kind in OBJECTS),
}


def plan(**settings: Any) -> Plan:
    return Plan(**(SETTINGS | settings))


def goals_at(ways: Ways, shape: tuple[int, int], point: tuple[int, int]) -> np.ndarray:
    goals = np.zeros((ways.headings, *shape), bool)
    goals[:, point[0], point[1]] = True
    return goals


def test_a_seed_gives_the_same_house_and_another_seed_another():
    def draw(seed: int) -> str:
        house = plan().draw(np.random.default_rng(seed))
        assert house is not None
        return house.fingerprint()

    assert draw(3) == draw(3) != draw(4)


@pytest.mark.parametrize("rooms", [1, 2, 3, 5, 9])
def test_every_room_can_be_reached_and_holds_no_object_twice(rooms: int):
    house, rng = None, np.random.default_rng(rooms)
    while house is None:
        house = plan(rooms=rooms, furniture=2, objects=4).draw(rng)
    names = [thing.kind.name for thing in house.things if thing.kind in OBJECTS]
    assert len(house.rooms) == rooms
    assert len(set(names)) == len(names) == 4
    assert sum(thing.kind is DOORWAY for thing in house.things) == rooms - 1
    # All free points have a way to the first of them.
    ways = Ways(house, 90)
    first = tuple(np.argwhere(house.free)[0])
    far = ways.distances(goals_at(ways, house.shape, first))
    assert (far[:, house.free] < FAR).all()


def test_the_agent_cannot_stand_where_something_stands():
    house = room(("ball", 1.25, 2.25))  # the point in row 4, column 2
    assert not house.free[4, 2]
    assert house.free.sum() == 8 * 8 - 1


def test_with_short_steps_a_thing_takes_several_points():
    # A thing takes what is nearer than 0.45 m: its own point, four at 0.25 m, four at 0.35 m.
    house = room(("ball", 1.125, 1.125), points=16, step=0.25)
    assert (~house.free).sum() == 9


def test_moves_go_where_the_agent_looks_and_walls_and_things_stop_them():
    ways = Ways(room(("ball", 1.25, 2.25)), 90)
    north, east = Pose((3, 3), 0), Pose((3, 3), 1)
    assert ways.act(north, "moveahead") == Pose((4, 3), 0)
    assert ways.act(north, "moveright") == Pose((3, 4), 0)
    assert ways.act(east, "moveahead") == Pose((3, 4), 1)
    assert ways.act(east, "moveleft") == Pose((4, 3), 1)
    assert ways.act(east, "moveback") == Pose((3, 2), 1)
    assert ways.act(north, "rotateleft") == Pose((3, 3), 3)
    assert ways.act(Pose((4, 3), 3), "moveahead") == Pose((4, 3), 3)  # the ball
    assert ways.act(Pose((7, 3), 0), "moveahead") == Pose((7, 3), 0)  # the wall
    assert ways.clear_steps(north, "moveahead") == 4


def test_half_right_turns_lead_across_the_lattice_but_around_no_corner():
    ways = Ways(room(("ball", 1.25, 2.25)), 45)
    assert ways.act(Pose((3, 3), 1), "moveahead") == Pose((4, 4), 1)
    assert ways.act(Pose((3, 3), 7), "moveahead") == Pose((3, 3), 7)  # the ball is there
    assert ways.act(Pose((4, 3), 7), "moveahead") == Pose((4, 3), 7)  # it is beside the way
    assert ways.act(Pose((4, 3), 5), "moveahead") == Pose((4, 3), 5)


def test_a_wall_is_passed_only_through_its_doorway():
    house = two_rooms(("ball", 7.25, 0.75))
    ways = Ways(house, 90)
    passed = [row for row in range(8) if ways.act(Pose((row, 7), 1), "moveahead").point[1] == 8]
    assert passed == [2, 3]  # 1 to 2 m north
    assert len(house.walls) == 4 + 4 + 2  # the wall between has two pieces on either side


def test_the_shortest_way_is_counted_in_actions():
    house = room(("ball", 3.75, 3.75))
    ways = Ways(house, 90)
    far = ways.distances(goals_at(ways, house.shape, (3, 0)))
    # From the corner, looking north: three steps ahead. Looking east: three steps to the left.
    assert far[0, 0, 0] == far[1, 0, 0] == 3
    only_ahead = Ways(house, 90, ("moveahead", "rotateright"))
    far = only_ahead.distances(goals_at(only_ahead, house.shape, (3, 0)))
    assert far[0, 0, 0] == 3
    assert far[3, 0, 0] == 1 + 3  # one turn to the right
    assert far[1, 0, 0] == 3 + 3  # three turns to the right, since there is none to the left


@pytest.mark.parametrize("turn_angle", [45, 90])
@pytest.mark.parametrize("actions", [ACTIONS, ("moveahead", "rotateleft", "rotateright")])
def test_a_plan_is_as_long_as_the_distance_and_leads_to_the_goal(
    turn_angle: int, actions: tuple[str, ...]
):
    house, rng = None, np.random.default_rng(5)
    while house is None:
        house = plan().draw(rng)
    ways = Ways(house, turn_angle, actions)
    free = np.argwhere(house.free)
    far = ways.distances(goals_at(ways, house.shape, tuple(free[0])))
    for _ in range(40):
        row, column = map(int, free[rng.integers(len(free))])
        pose = Pose((row, column), int(rng.integers(ways.headings)))
        route = ways.plan(pose, far)
        assert route is not None and len(route) == far[pose.heading, row, column]
        for action in route:
            after = ways.act(pose, action)
            assert after != pose
            pose = after
        assert pose.point == tuple(free[0])


def test_no_plan_leads_where_no_way_does():
    house = room(("ball", 1.25, 2.25))
    ways = Ways(house, 90)
    nowhere = np.zeros((4, *house.shape), bool)
    assert ways.plan(Pose((0, 0), 0), ways.distances(nowhere)) is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rooms": 0}, "rooms is 0"),
        ({"rooms": 10}, "rooms is 10"),
        ({"step": 0.1}, "step is 0.1"),
        ({"room_size": 5.2}, "room_size is 5.2 and step 0.5"),
        ({"room_size": 2.0}, "room_size is 2.0"),
        ({"targets": ()}, "targets is"),
        ({"targets": ("sofa",)}, "targets is .'sofa'.; give some of ball"),
        ({"objects": 0}, "objects is 0"),
        ({"objects": 9}, "objects is 9"),
        ({"furniture": -1}, "furniture is -1"),
        ({"rooms": 1, "furniture": 6}, "furniture is 6 and objects 3.*hold 0 to 8 things"),
    ],
)
def test_houses_that_cannot_be_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        plan(**settings)
