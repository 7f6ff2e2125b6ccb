"""Skills as they are written, when they fail by geometry, and the scene in words."""

import json
import math
from dataclasses import replace

import pytest

from vagentrl_envs.primitive_skill.scene import HAND, Scene, Target, Thing, describe
from vagentrl_envs.primitive_skill.skills import (
    COLLISION,
    EMPTY,
    FULL,
    NOTHING,
    OPENED,
    PICKED,
    SLIPPED,
    UNMOVED,
    UNREACHABLE,
    Skill,
    failure,
    is_reachable,
    picked,
    pulled,
    read_skill,
)

RED = Thing("red cube", "red", (0.0, 0.0, 20.0))
GREEN = Thing("green cube", "green", (100.0, -100.0, 20.0))
SCENE = Scene("place", ("red cube",), (RED, GREEN), (Target("red target", "red", -100.0, 50.0),))
HOLDING = SCENE.moved("red cube", HAND, held="red cube")
CABINET = Scene("open", (), (RED,), drawer=0.0)


def skill(text: str) -> Skill:
    found = read_skill(text)
    assert found is not None, text
    return found


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("pick(10, -20, 20)", "pick(10, -20, 20)"),
        ("  PICK ( +10,-20 ,020 ) ", "pick(10, -20, 20)"),
        ("push(1,2,3,4,5,6)", "push(1, 2, 3, 4, 5, 6)"),
        ("place(0, 0, 20)", "place(0, 0, 20)"),
    ],
)
def test_a_skill_is_read_and_written(text: str, written: str):
    assert str(skill(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        "pick", "pick()", "pick(1, 2)", "pick(1, 2, 3, 4)", "push(1, 2, 3)", "grab(1, 2, 3)",
        "pick(1.5, 2, 3)", "pick(1e3, 2, 3)", "pick(nan, 2, 3)", "pick(99999, 2, 3)",
        "pick(1, 2, 3) place(1, 2, 3)", "pick(--1, 2, 3)", "pick(1 2, 2, 3)", "pick(\u0661, 2, 3)",
        "pick(" + "1," * 5000 + "1)", "", "<image>",
    ],
)  # fmt: skip
def test_other_text_is_no_skill(text: str):
    assert read_skill(text) is None


@pytest.mark.parametrize(
    ("scene", "text", "why"),
    [
        (SCENE, "pick(0, 0, 20)", None),
        (SCENE, "pick(24, 0, 20)", None),  # touched; it will slip
        (SCENE, "pick(26, 0, 20)", NOTHING),
        (SCENE, "pick(0, 0, 41)", NOTHING),  # above the cube
        (SCENE, "pick(0, 0, 4)", COLLISION),  # fingers in the table
        (SCENE, "pick(300, 0, 20)", UNREACHABLE),
        (SCENE, "place(0, 0, 20)", EMPTY),
        (HOLDING, "pick(100, -100, 20)", FULL),
        (HOLDING, "push(0, 0, 20, 50, 0, 20)", FULL),
        (HOLDING, "place(0, 0, 20)", None),
        (HOLDING, "place(0, 0, 14)", COLLISION),  # a cube's centre is 20 above the table
        (HOLDING, "place(100, -100, 20)", COLLISION),  # there stands the green cube
        (HOLDING, "place(100, -100, 60)", None),  # upon it
        (HOLDING, "place(100, -50, 20)", COLLISION),  # a finger has no room between them
        (HOLDING, "place(50, -100, 20)", None),  # the fingers close across y, not x
        (SCENE, "push(0, 0, 20, 50, 0, 20)", COLLISION),  # begins inside the cube
        (SCENE, "push(-50, 0, 20, 50, 0, 20)", None),
        (SCENE, "push(-50, 0, 20, 50, 0, 0)", COLLISION),  # ends in the table
        (SCENE, "push(-50, 0, 20, 500, 0, 20)", UNREACHABLE),
        (CABINET, "push(5, 130, 45, -100, 130, 45)", None),  # at the handle
        (CABINET, "push(60, 130, 45, -100, 130, 45)", COLLISION),  # inside the cabinet
    ],
)
def test_when_a_skill_cannot_be_done(scene: Scene, text: str, why: str | None):
    assert failure(scene, skill(text)) == why


def test_a_cube_beneath_another_cannot_be_picked():
    tower = SCENE.moved("green cube", (0.0, 0.0, 60.0))
    assert failure(tower, skill("pick(0, 0, 20)")) == COLLISION
    assert failure(tower, skill("pick(0, 0, 60)")) is None


def test_a_firm_grasp_lifts_and_a_loose_one_slips():
    lifted = picked(SCENE, skill("pick(10, 0, 20)"), slips=False)
    assert (lifted.held, lifted.result) == ("red cube", PICKED)
    assert lifted.thing("red cube").position == HAND
    for text, slips in (("pick(11, 0, 20)", False), ("pick(0, 0, 20)", True)):
        slipped = picked(SCENE, skill(text), slips)
        assert slipped == replace(SCENE, result=SLIPPED)


def test_the_drawer_follows_the_hand_within_its_rails_and_takes_along_what_lies_in_it():
    opened = pulled(CABINET, skill("push(5, 130, 45, -300, 130, 45)"))
    assert (opened.drawer, opened.result) == (110.0, OPENED)
    assert opened.handle == (-105.0, 130.0, 45.0)
    apple = Thing("apple", "red", (-40.0, 130.0, 29.0))
    filled = replace(opened, things=(*opened.things, apple))
    assert filled.inside(apple) and not filled.inside(RED)
    shut = pulled(filled, skill("push(-105, 130, 45, 200, 130, 45)"))
    assert shut.drawer == 0 and shut.thing("apple").position == (70.0, 130.0, 29.0)
    assert shut.thing("red cube") == RED
    assert pulled(CABINET, skill("push(5, 130, 45, 200, 130, 45)")).result == UNMOVED


def test_reach_is_that_of_a_panda_whose_hand_points_down():
    """Wherever the geometry says so, the arm's inverse kinematics find a way."""
    pybullet = pytest.importorskip("pybullet")
    data = pytest.importorskip("pybullet_data")
    client = pybullet.connect(pybullet.DIRECT)
    arm = pybullet.loadURDF(
        f"{data.getDataPath()}/franka_panda/panda.urdf", (-0.615, 0, 0), useFixedBase=True
    )
    down = pybullet.getQuaternionFromEuler((math.pi, 0, 0))
    rest = (0, -0.3, 0, -2.0, 0, 1.9, 0.785, 0.02, 0.02)
    low = (-2.9, -1.76, -2.9, -3.07, -2.9, 0, -2.9, 0, 0)
    high = (2.9, 1.76, 2.9, -0.07, 2.9, 3.75, 2.9, 0.04, 0.04)
    reached = 0
    for x in range(-400, 301, 70):
        for y in (-450, -220, 0, 180, 400):
            if not is_reachable((x, y, 60)):
                continue
            for joint, angle in zip((*range(7), 9, 10), rest, strict=True):
                pybullet.resetJointState(arm, joint, angle)
            goal = (x / 1000, y / 1000, 0.06)
            span = [b - a for a, b in zip(low, high, strict=True)]
            angles = pybullet.calculateInverseKinematics(
                arm, 11, goal, down, low, high, span, rest, maxNumIterations=400
            )
            for joint in range(7):
                pybullet.resetJointState(arm, joint, angles[joint])
            assert math.dist(pybullet.getLinkState(arm, 11)[0], goal) < 0.01
            reached += 1
    pybullet.disconnect(client)
    assert reached > 25
    assert not is_reachable((0, 0, 700)) and not is_reachable((-560, 0, 20))


# ------------------------------------------------------------------------------------ in words


def test_the_scene_in_words_as_json_and_as_a_map():
    state = describe(replace(SCENE, result=PICKED))
    assert state.natural == (
        "the red cube is at (0, 0, 20); the green cube is at (100, -100, 20); the red target is at "
        "(-100, 50); the hand holds nothing; the result of the last skill is picked"
    )
    assert json.loads(state.structured) == {
        "red cube": [0, 0, 20],
        "green cube": [100, -100, 20],
        "red target": [-100, 50],
        "hand": "nothing",
        "result": "picked",
    }
    rows = state.symbolic.split("\n")
    # rows are x = 200, 150, … and columns y = 250, 200, …: left of the robot first
    assert rows[2] == "_______G___" and rows[4] == "_____R_____" and rows[6] == "____r______"
    assert rows[9:] == ["hand:_", "result:picked"]


def test_what_is_held_and_the_drawer_are_told():
    scene = replace(CABINET.moved("red cube", HAND, held="red cube"), drawer=80.0)
    state = describe(scene)
    assert state.natural == (
        "the hand holds the red cube; the drawer is 80 open; the handle is at (-75, 130, 45); "
        "the result of the last skill is none"
    )
    assert json.loads(state.structured)["hand"] == "red cube"
    assert "hand:R\ndrawer:080\n" in state.symbolic
