import json
from typing import Any

import numpy as np
import pytest

from tests.envs.every_format import EVERY_FORMAT
from vagentrl.errors import ConfigError
from vagentrl.types import IMAGE_PLACEHOLDER, Reply, StepResult
from vagentrl_envs.sokoban import LargeSokoban, Sokoban, SokobanNewVocab, Vocabulary
from vagentrl_envs.sokoban_rooms import Room
from vagentrl_envs.sokoban_sprites import atlas

TWO_BOXES = Room.parse("######\n#P___#\n#X*__#\n#O___#\n######")


def play(env: Sokoban, *actions: str) -> StepResult:
    return env.step(Reply("", actions=actions))


def in_two_boxes(**settings: Any) -> Sokoban:
    env = Sokoban(boxes=2, size=(5, 6), **settings)
    env.start_from(TWO_BOXES)
    return env


def test_a_move_costs_a_tenth():
    assert play(in_two_boxes(), "Right").reward == pytest.approx(-0.1)


def test_a_move_into_a_wall_costs_a_tenth_and_changes_nothing():
    env = in_two_boxes()
    result = play(env, "Up")
    assert result.reward == pytest.approx(-0.1)
    assert result.metrics["effective_actions"] == 0
    assert env.room() == TWO_BOXES


def test_the_last_box_onto_its_target_solves_the_room():
    result = play(in_two_boxes(), "Down")
    assert result.reward == pytest.approx(-0.1 + 1 + 10)
    assert result.terminated
    assert result.metrics["success"] == 1


def test_a_box_off_its_target_costs_one_and_comes_back_for_one():
    # right, down: the box on the target in the second column moves down to the third row
    env = in_two_boxes(actions_per_turn=4)
    assert play(env, "Right", "Down").reward == pytest.approx(-0.1 - 0.1 - 1)
    env.start_from(Room.parse("######\n#____#\n#XO__#\n#OX__#\n#_P__#\n######"))
    result = play(env, "Up")
    assert result.reward == pytest.approx(-0.1 + 1)
    assert not result.terminated


def test_a_box_does_not_push_another():
    env = Sokoban(boxes=2, size=(3, 7))
    env.start_from(Room.parse("#######\n#PXX_O#\n#__O__#\n#######"))
    before = env.room()
    assert play(env, "Right").metrics["effective_actions"] == 0
    assert env.room() == before


@pytest.mark.parametrize("boxes", [1, 2])
def test_the_oracle_solves_in_as_many_turns_as_its_plan_is_long(boxes: int):
    env = Sokoban(boxes=boxes, turn_limit=10)
    for seed in range(40):
        env.reset(seed)
        first = env.oracle()
        assert first is not None
        for left in range(len(first), 0, -1):
            plan = env.oracle()
            assert plan is not None and len(plan) == left
            result = play(env, plan[0])
            assert result.terminated == (left == 1) == bool(result.metrics["success"])
        assert env.oracle() == ()


def test_the_oracle_knows_when_there_is_no_way():
    env = Sokoban(size=5)
    env.start_from(Room.parse("#####\n#___#\n#_XP#\n#__O#\n#####"))
    assert env.oracle() == ("Up", "Left", "Down", "Left", "Down", "Right")
    play(env, "Left")  # the box now stays along the left wall
    assert env.oracle() is None


def test_shaping_adds_up_to_the_difference_of_potentials():
    plain, shaped = Sokoban(), Sokoban(potential_shaping=0.5, reward_scale=2)
    for seed in range(10):
        plain.reset(seed)
        shaped.reset(seed)
        plan = plain.oracle()
        assert plan is not None
        without = sum(play(plain, action).reward for action in plan)
        added = sum(play(shaped, action).reward for action in plan)
        # potential -0.5 * distance, from the start to 0 at the end, twice
        assert added == pytest.approx(2 * (without + 0.5 * len(plan)))


def test_shaping_of_one_turn_by_hand():
    env = Sokoban(size=(4, 6), potential_shaping=1.0, shaping_gamma=0.9, format_penalty=0.2)
    env.start_from(Room.parse("######\n#PX_O#\n#____#\n######"))
    # two pushes away, one after the move: 0.9 * -1 - (-2) = 1.1
    assert play(env, "Right").reward == pytest.approx(-0.1 + 1.1)
    # a malformed reply stays where it is: 0.9 * -1 - (-1) = 0.1
    assert env.step(Reply("", problem="no <answer>")).reward == pytest.approx(-0.2 + 0.1)
    # solved: 0 - (-1) = 1
    assert play(env, "Right").reward == pytest.approx(-0.1 + 1 + 10 + 1)


def test_a_dead_end_is_as_far_as_the_floor_is_large():
    env = Sokoban(size=5, max_solution=3, potential_shaping=1.0)
    env.start_from(Room.parse("#####\n#___#\n#_XP#\n#__O#\n#####"))
    # six moves away (up, left, down, left, down, right), then never: -(3 * 3 cells) - (-6) = -3
    assert play(env, "Left").reward == pytest.approx(-0.1 - 3)


def test_the_picture_shows_the_room():
    env = Sokoban(boxes=2, cell=14, inner_walls=1, size=(6, 7), turn_limit=30)
    sprites = atlas(14)
    for seed in range(10):
        observation = env.reset(seed)
        for action in ("Up", "Left", "Down", "Right", "Down", "Left"):
            (image,) = observation.images
            assert observation.text == IMAGE_PLACEHOLDER
            assert image.size == (7 * 14, 6 * 14)
            cells = np.asarray(image).reshape(6, 14, 7, 14, 3).swapaxes(1, 2)
            matches = (cells[:, :, None] == sprites).all((3, 4, 5))
            assert (matches.sum(-1) == 1).all()
            assert (matches.argmax(-1) == env.room().codes()).all()
            result = play(env, action)
            observation = result.observation
            if result.terminated:
                break


@pytest.mark.parametrize("cell", [8, 14, 28, 64])
def test_sprites_differ_clearly_at_any_size(cell: int):
    sprites = atlas(cell).astype(float)
    for one in range(7):
        for other in range(one):
            assert abs(sprites[one] - sprites[other]).mean() > 4, (one, other)


def test_text_shows_the_grid():
    env = Sokoban(boxes=2, size=(5, 6), observation="text")
    assert env.start_from(TWO_BOXES).text == TWO_BOXES.grid()


def test_the_frame_is_for_people_whatever_the_agent_sees():
    env = Sokoban(observation="text")
    env.reset(0)
    assert env.frame().size == (6 * 48, 6 * 48)


def test_the_state_in_its_three_representations():
    env = in_two_boxes()
    state = env.state()
    assert json.loads(state.structured) == {
        "player": [1, 1],
        "boxes": [[2, 1], [2, 2]],
        "targets": [[2, 2], [3, 1]],
    }
    assert " " not in state.structured
    assert state.symbolic == "######\n#P___#\n#X*__#\n#O___#\n######"
    assert state.natural == (
        "the player is at row 1, column 1; box 1 is 1 below the player; "
        "box 2 is 1 below and 1 to the right of the player; "
        "target 1 is 1 below and 1 to the right of the player; target 2 is 2 below the player"
    )


def test_the_player_on_a_target_is_said_to_be_there():
    env = Sokoban(size=(3, 6))
    env.start_from(Room.parse("######\n#_XS_#\n######"))
    assert env.state().natural.endswith("the target is where the player is")


def test_another_vocabulary_names_the_same_room():
    old, new = Sokoban(observation="text"), Sokoban(observation="text", vocabulary="new")
    seen, renamed = old.reset(7).text, new.reset(7).text
    assert seen.translate(str.maketrans("#_OX*PS", "W.GBCA@")) == renamed
    assert old.state().structured == new.state().structured
    assert "crate" in new.state().natural and "box" not in new.state().natural
    assert "player" not in new.system_prompt()
    assert play(new, "north").metrics["valid_actions"] == 1
    assert play(old, "north").metrics["valid_actions"] == 0


@pytest.mark.parametrize("observation", ["image", "text"])
@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_the_system_prompt_is_short_and_complete(format, observation):
    env = Sokoban(format=format, observation=observation)
    prompt = env.system_prompt()
    assert len(prompt) < 900
    for wanted in ("Up, Down, Left, Right", "<answer>", "box", "target"):
        assert wanted in prompt
    assert ("crate" in prompt) == (observation == "image")


def test_members_of_a_group_start_from_the_same_room():
    one, other = Sokoban(), Sokoban()
    one.reset(4, transition_seed=1)
    other.reset(4, transition_seed=2)
    assert one.room() == other.room()


def test_boundless_solutions_can_be_asked_for():
    env = Sokoban(max_solution=None, min_solution=11, turn_limit=40)
    env.reset(0)
    assert len(env.oracle() or ()) >= 11


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": 2}, "size is"),
        ({"size": (3, 4)}, "boxes is 1 and size"),
        ({"boxes": 0}, "boxes is 0"),
        ({"inner_walls": 14}, "inner_walls is 14.*boxes 1"),
        ({"min_solution": 5, "max_solution": 4}, "min_solution is 5 and max_solution 4"),
        ({"min_solution": 9, "turn_limit": 4}, "min_solution is 9.*turn_limit"),
        ({"cell": 0}, "cell is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        Sokoban(**settings)


def test_a_vocabulary_must_tell_things_apart():
    with pytest.raises(ConfigError, match="seven different"):
        Vocabulary(symbols="##OX*PS")


# ---------------------------------------------------------------------------------------- siblings


def test_the_new_vocabulary_is_another_way_to_tell_the_same_rooms():
    other, usual = SokobanNewVocab(), Sokoban(observation="text")
    told, same = other.reset(4).text, usual.reset(4).text
    assert told == same.translate(str.maketrans("#_OX*PS", "W.GBCA@"))
    assert other.action_names == ("North", "South", "West", "East")
    assert "crate" in other.system_prompt()


def test_a_large_room_has_two_boxes_and_can_be_solved_within_its_limit():
    env = LargeSokoban()
    for seed in range(5):
        env.reset(seed)
        room, plan = env.room(), env.oracle()
        assert (len(room.boxes), len(room.targets)) == (2, 2)
        assert plan is not None and len(plan) <= 20 < env.turn_limit
    assert env.frame().size == (8 * 48, 8 * 48)


def test_the_settings_of_a_sibling_can_be_changed():
    assert SokobanNewVocab(size=7, turn_limit=9).turn_limit == 9
    assert LargeSokoban(boxes=3, vocabulary="new").action_names[0] == "North"
