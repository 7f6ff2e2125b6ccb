import asyncio
import copy
import json
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.envs.every_format import EVERY_FORMAT
from tests.envs.navigation.rooms import room, two_rooms
from vagentrl.environment import seed_of, split_of_state
from vagentrl.errors import ConfigError
from vagentrl.types import Claim, Reply, StepResult
from vagentrl_envs.navigation import Navigation
from vagentrl_envs.navigation.house import House
from vagentrl_envs.navigation.poses import ACTIONS, Pose
from vagentrl_envs.navigation.world import HouseWorld
from vagentrl_judges.exact_state import ExactState


def play(env: Navigation, *actions: str) -> StepResult:
    return env.step(Reply("", actions=actions))


def placed(house: House, point: tuple[int, int], heading: int = 0, **settings: Any) -> Navigation:
    """An episode in a given house."""
    env = Navigation(**settings)
    env.reset(0)
    assert isinstance(env.world, HouseWorld)
    env.world.start_in(house, Pose(point, heading))
    return env


# Row 0 and column 3 are at x = 1.75, y = 0.25; the ball is 3.5 m north of there.
BALL = room(("ball", 1.75, 3.75), ("sofa", 3.25, 2.25))


def test_an_action_costs_a_tenth_and_the_object_earns_ten():
    env = placed(BALL, (0, 3), actions_per_turn=3)
    first = play(env, "moveahead", "moveahead", "moveahead")
    assert first.reward == pytest.approx(-0.3)
    assert not first.terminated
    # 3.5 m less three steps of 0.5 m is 2 m; one more step and it is 1.5 m.
    last = play(env, "moveahead", "moveahead")
    assert last.reward == pytest.approx(-0.1 + 10)
    assert last.terminated and last.metrics["success"] == 1


def test_an_object_that_is_near_but_not_seen_is_not_found_unless_that_is_enough():
    assert not play(placed(BALL, (5, 3), heading=1), "rotateright").terminated  # now to the south
    assert play(placed(BALL, (5, 3), heading=1), "rotateleft").terminated
    blind = placed(BALL, (5, 3), heading=1, must_see=False)
    assert play(blind, "rotateright").terminated


def test_an_object_behind_a_wall_is_not_found():
    house = two_rooms(("lamp", 4.75, 3.25))
    env = placed(house, (6, 6), heading=0)  # 1.5 m to the west of it, looking north
    assert not play(env, "rotateright").terminated
    assert play(placed(house, (6, 8), heading=0), "rotateright").terminated


def test_a_move_that_is_blocked_is_told_and_costs_what_is_set():
    env = placed(BALL, (0, 3), heading=2, collision_cost=0.5)
    result = play(env, "moveahead")
    assert result.reward == pytest.approx(-0.1 - 0.5)
    assert result.metrics["effective_actions"] == 0
    assert "Something was in the way." in result.observation.text
    assert env.state().natural.endswith("; the way was blocked")
    assert json.loads(env.state().structured)["blocked"] is True
    free = play(env, "rotateleft")
    assert "in the way" not in free.observation.text
    assert "blocked" not in env.state().structured


def test_the_state_tells_where_things_are_relative_to_the_agent():
    state = placed(BALL, (0, 3)).state()
    # The ball is 3.5 m ahead; the sofa 2 m ahead and 1.5 m to the right, which are 2.5 m at 37
    # degrees.
    assert state.structured == '{"ball":[3.5,0.0],"sofa":[[2.0,1.5]]}'
    assert state.natural == "the ball is 3.5 m ahead; a sofa is 2.5 m ahead-right"
    assert state.symbolic.split("\n") == [
        "___________",
        "_____*_____",  # 4 m ahead, rounded from 3.5
        "___________",
        "_______s___",
        "___________",
        "_____^_____",
        *["___________"] * 5,
    ]


def test_the_sofa_is_to_the_left_after_a_turn_to_the_right():
    state = placed(BALL, (0, 3), heading=1).state()
    # Looking east: the sofa is 1.5 m ahead and 2 m to the left, and its right end is in sight.
    assert state.structured == '{"ball":[0.0,-3.5],"sofa":[[1.5,-2.0]]}'
    assert state.natural == "the ball is 3.5 m left; a sofa is 2.5 m ahead-left"


def test_where_the_hidden_object_is_can_be_kept_secret():
    behind = placed(BALL, (0, 3), heading=2, tell_hidden=False).state()
    assert behind.structured == '{"ball":null}'
    assert behind.natural == "the ball is out of sight"
    assert "*" not in behind.symbolic
    ahead = placed(BALL, (0, 3), tell_hidden=False).state()
    assert ahead == placed(BALL, (0, 3)).state()


def test_only_the_nearest_things_are_told():
    env = placed(BALL, (0, 3), most_things=0)
    assert env.state().structured == '{"ball":[3.5,0.0]}'


def test_the_text_tells_what_is_seen_and_how_far_one_can_go():
    env = placed(BALL, (0, 3), observation="text")
    assert play(env, "moveahead").observation.text == (
        "Find the ball.\nYou see a sofa 2.1 m ahead-right; a ball 3.0 m ahead.\n"
        # Rows 2 to 6 are free, row 7 has the ball; columns 0 to 2 and 4 to 7 of row 1 are free.
        "Free steps: 5 ahead, 1 back, 3 left, 4 right."
    )


@pytest.mark.parametrize(
    ("observation", "images", "words"), [("image", 1, False), ("text", 0, True), ("both", 1, True)]
)
def test_what_the_agent_sees(observation: Any, images: int, words: bool):
    seen = Navigation(observation=observation, size=(96, 64)).reset(0)
    assert [image.size for image in seen.images] == [(96, 64)] * images
    assert ("You see" in seen.text) == words


def test_the_object_is_named_and_never_twice_in_a_house():
    env = Navigation(targets=["lamp", "vase"], objects=4)
    for seed in range(20):
        env.reset(seed)
        assert isinstance(env.world, HouseWorld)
        names = [thing.kind.name for thing in env.world.house.things]
        assert env.world.target in ("lamp", "vase")
        assert names.count(env.world.target) == 1


SETTINGS: list[dict[str, Any]] = [
    {},
    {"turn_angle": 45},
    {"rooms": 4, "furniture": 8, "objects": 5, "turn_limit": 60},
    {"step": 0.25, "room_size": 4.0, "furniture": 1, "turn_limit": 40},
    {"actions": ["moveahead", "rotateleft", "rotateright"]},
    {"must_see": False, "success_distance": 1.0},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_plan_leads_to_the_object_and_not_sooner(settings: dict[str, Any]):
    env = Navigation(observation="text", **settings)
    for seed in range(12):
        env.reset(seed)
        plan = env.oracle()
        assert plan is not None
        assert env.longest_episode >= len(plan) >= 4
        for left, action in zip(range(len(plan), 0, -1), plan, strict=True):
            assert len(env.oracle() or ()) == left
            result = play(env, action)
            assert result.terminated == (result.metrics["success"] == 1) == (left == 1)
        assert env.oracle() == ()


def test_a_start_is_between_the_bounds():
    env = Navigation(min_solution=3, max_solution=4, observation="text")
    for seed in range(20):
        env.reset(seed)
        assert len(env.oracle() or ()) in (3, 4)


def test_the_splits_share_no_start():
    env = Navigation()
    found = {
        split: {env.initial_state(seed_of(split, index)) for index in range(30)}
        for split in ("train", "validation", "test")
    }
    assert not found["train"] & found["validation"]
    assert not (found["train"] | found["validation"]) & found["test"]
    for split, states in found.items():
        assert {split_of_state(str(state)) for state in states} == {split}


def test_shaping_adds_up_to_the_way_that_was_made():
    plain, shaped = Navigation(), Navigation(potential_shaping=0.3)
    rng = Random(1)
    for seed in range(6):
        plain.reset(seed)
        shaped.reset(seed)
        before, earned = len(plain.oracle() or ()), 0.0
        for _ in range(20):
            actions = plain.random_actions(rng)
            one, other = play(plain, *actions), play(shaped, *actions)
            earned += other.reward - one.reward
            if one.terminated or one.truncated:
                break
        assert earned == pytest.approx(0.3 * (before - len(plain.world.plan() or ())))


@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_the_prompt_is_short_and_tells_how_to_reply(format: Any):
    prompt = Navigation(format=format).system_prompt()
    assert len(prompt) < 1300
    for wanted in ("moveahead", "rotateright", "within 1.5 m and see it", "<answer>"):
        assert wanted in prompt
    assert ("Write a state" in prompt) == bool(format.claims)


def test_the_true_state_is_all_right_in_every_representation():
    env = Navigation(rooms=2, furniture=6, turn_limit=40, observation="text")
    rng, judge = Random(0), ExactState()
    for seed in range(5):
        env.reset(seed)
        for _ in range(8):
            state = env.state()
            for representation in ("natural", "structured", "symbolic"):
                claim = Claim("observation", getattr(state, representation), representation, state)
                assert asyncio.run(judge.judge(claim)).score == 1
            if play(env, *env.random_actions(rng)).terminated:
                break


def test_common_spellings_are_repaired():
    env = placed(BALL, (0, 3))
    assert play(env, "Move Forward").metrics["repaired_actions"] == 1
    assert play(env, "turn_left").metrics["effective_actions"] == 1
    few = Navigation(actions=["moveahead", "rotateleft"])
    few.reset(0)
    assert play(few, "turn right").metrics["valid_actions"] == 0


def test_the_frame_shows_the_picture_and_the_house():
    env = placed(BALL, (0, 3), observation="text")
    before = np.asarray(env.frame())
    play(env, "rotateleft")
    after = np.asarray(env.frame())
    assert before.shape == after.shape
    assert (before[:, :256] != after[:, :256]).any()  # the picture
    assert (before[:, 256:] != after[:, 256:]).any()  # the map


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": 8}, "size is 8"),
        ({"size": (64, 4000)}, "size is .64, 4000."),
        ({"fov": 10}, "fov is 10"),
        ({"turn_angle": 30}, "turn_angle is 30"),
        ({"success_distance": 0.5}, "success_distance is 0.5"),
        ({"observation": "sound"}, "observation is 'sound'"),
        ({"most_things": -1}, "most_things is -1"),
        ({"step_cost": -0.1}, "step_cost is -0.1"),
        ({"collision_cost": -1.0}, "collision_cost is -1.0"),
        ({"actions": ["rotateleft"]}, "actions is .'rotateleft'.; give moveahead"),
        ({"actions": ["moveahead", "fly"]}, "actions is .*fly"),
        ({"min_solution": 0}, "min_solution is 0"),
        ({"max_solution": 3}, "min_solution is 4 and max_solution 3"),
        ({"min_solution": 9, "turn_limit": 8}, "min_solution is 9.* 8 actions"),
        ({"renderer": "oil"}, "renderer is 'oil'"),
        ({"rooms": 0}, "rooms is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        Navigation(**settings)


def test_all_six_actions_are_there_by_default():
    assert Navigation().action_names == ACTIONS


@pytest.mark.parametrize("renderer", ["raycaster", "miniworld"])
def test_a_copy_plays_on_by_itself(renderer: Any):
    try:
        env = Navigation(renderer=renderer, size=48)
    except ConfigError as error:
        pytest.skip(str(error))
    first = env.reset(3)
    other = copy.deepcopy(env)
    moved = play(other, "rotateleft").observation
    assert play(env, "rotateleft").observation.images[0].tobytes() == moved.images[0].tobytes()
    assert play(other, "rotateright").observation.images[0].tobytes() == first.images[0].tobytes()
    assert env.state() != other.state()
