"""Episodes on PyBullet: tasks, oracle, failures as states, exactness, splits."""

import copy
from random import Random
from typing import Any, get_args

import pytest

pytest.importorskip("pybullet")

from tests.processes import printed_in_every_process
from vagentrl.cli.warmstart import Demonstrator, demonstrate
from vagentrl.environment import Split, seed_of, split_of_state
from vagentrl.errors import ConfigError
from vagentrl.formats import FreeThink, NoThink, WorldModeling
from vagentrl.types import Reply, StepResult
from vagentrl_envs.primitive_skill import PrimitiveSkill
from vagentrl_envs.primitive_skill.bullet import PyBullet
from vagentrl_envs.primitive_skill.scene import Scene, Target, Thing, apart
from vagentrl_envs.primitive_skill.tasks import subgoals

RED = Thing("red cube", "red", (0.0, 0.0, 20.0))
GREEN = Thing("green cube", "green", (50.0, -120.0, 20.0))
TABLE = Scene("place", ("red cube",), (RED, GREEN), (Target("red target", "red", -100.0, 50.0),))


def say(env: PrimitiveSkill, *skills: str) -> StepResult:
    return env.step(Reply("", actions=skills))


def start(scene: Scene = TABLE, **settings: Any) -> PrimitiveSkill:
    env = PrimitiveSkill(**{"observation": "text", **settings})
    env.start_from(scene)
    return env


def result_of(env: PrimitiveSkill, text: str) -> str:
    say(env, text)
    return env.scene.result


def test_each_part_that_is_done_earns_its_share_and_costs_it_when_undone():
    both = Scene(
        "place",
        ("red cube", "green cube"),
        (RED, GREEN),
        (Target("red target", "red", -100, 50), Target("green target", "green", -100, -100)),
    )
    env = start(both)
    assert say(env, "pick(0, 0, 20)").reward == 0
    assert say(env, "place(-100, 50, 20)").reward == 0.5
    assert say(env, "pick(-100, 50, 20)").reward == -0.5
    assert say(env, "place(-100, 40, 20)").reward == 0.5
    say(env, "pick(50, -120, 20)")
    last = say(env, "place(-100, -100, 20)")
    assert (last.reward, last.terminated, last.metrics["success"]) == (0.5, True, 1)


def test_a_failed_skill_is_a_state_and_no_error():
    env = start(turn_limit=20)
    before = env.scene
    assert result_of(env, "pick(400, 0, 20)") == "out of reach"
    assert result_of(env, "pick(-60, 0, 20)") == "nothing there"
    assert result_of(env, "pick(15, 0, 20)") == "slipped"
    assert result_of(env, "place(0, 0, 20)") == "hand empty"
    assert env.scene.things == before.things
    assert result_of(env, "pick(0, 0, 20)") == "picked"
    assert result_of(env, "pick(50, -120, 20)") == "hand full"
    assert result_of(env, "place(50, -120, 20)") == "collision"
    assert env.scene.held == "red cube"
    told = env.step(Reply("", problem="no <answer>"))
    assert "the result of the last skill is none" in told.observation.text


def test_what_is_let_go_in_the_air_falls():
    env = start()
    say(env, "pick(0, 0, 20)")
    assert result_of(env, "place(-100, 50, 120)") == "dropped"
    x, y, z = env.scene.thing("red cube").position
    assert z < 45 and apart((x, y, z), (-100, 50, 0)) < 80


def test_a_cube_on_the_edge_of_another_topples():
    env = start()
    say(env, "pick(0, 0, 20)")
    assert result_of(env, "place(78, -120, 60)") == "dropped"
    assert env.scene.thing("red cube").position[2] < 50


def test_what_slips_on_the_way_lies_between():
    env = start(slip=0.999)
    held = TABLE.moved("red cube", (-200.0, 0.0, 250.0), held="red cube")
    env.start_from(held)
    assert result_of(env, "place(0, 150, 20)") == "dropped"
    x, y, _ = env.scene.thing("red cube").position
    assert apart((x, y, 0), (-100, 75, 0)) < 60 and env.scene.held is None


def test_a_push_moves_what_is_in_the_way_and_nothing_else():
    env = start()
    assert result_of(env, "push(-50, 0, 20, 40, 0, 20)") == "pushed"
    x, y, z = env.scene.thing("red cube").position
    assert 65 <= x <= 80 and abs(y) < 6 and abs(z - 20) < 1  # 40 + 10 + 20 is where they touch
    assert env.scene.thing("green cube") == GREEN
    assert result_of(env, "push(-150, -150, 20, -100, -150, 20)") == "nothing moved"


def test_what_lies_still_stays_exactly_where_it_was():
    env = start(turn_limit=50)
    for _ in range(10):
        say(env, "pick(0, 0, 20)")
        say(env, "place(0, 0, 20)")
    assert env.scene.things == TABLE.things


SETTINGS = [
    ("pick", 2), ("push", 2), ("place", 3), ("stack", 3), ("align", 3), ("open", 1), ("drawer", 1)
]  # fmt: skip


@pytest.mark.parametrize(("task", "cubes"), SETTINGS)
def test_the_oracle_solves_every_task(task: Any, cubes: int):
    env = PrimitiveSkill(task=task, cubes=cubes, observation="text", turn_limit=12)
    for index in range(4):
        env.reset(seed_of("validation", index))
        assert not any(subgoals(env.scene))
        plan = env.oracle()
        assert plan
        results = [say(env, skill) for skill in plan]
        assert results[-1].metrics["success"] == 1
        assert sum(result.reward for result in results) == pytest.approx(1)


def test_the_oracle_goes_on_from_whatever_random_play_leaves():
    env, rng, solved = PrimitiveSkill("stack", 3, observation="text", turn_limit=40), Random(0), 0
    for index in range(8):
        env.reset(seed_of("train", index))
        for _ in range(5):  # too few to solve it by chance
            say(env, *env.random_actions(rng))
        for _ in range(12):
            plan = env.oracle()
            if plan and say(env, plan[0]).terminated:
                solved += 1
                break
            if not plan:
                break
    assert solved >= 6, solved  # a tilted or a far cube may have no known way


def test_several_skills_in_a_turn_have_several_results():
    env = start(actions_per_turn=2)
    result = say(env, "pick(0, 0, 20)", "place(-100, 50, 20)")
    assert result.terminated and env.scene.result == "picked, placed"


def test_unknown_skills_are_not_played_and_are_told():
    env = start(feedback=True, invalid_penalty=0.25)
    result = say(env, "grab(<image>)")
    assert result.reward == -0.25 and result.metrics["valid_actions"] == 0
    assert "unknown skill; the skills are pick(x, y, z)" in result.observation.text
    assert "grab" not in result.observation.text


def test_pictures_show_what_moved():
    env = PrimitiveSkill(size=64)
    first = env.start_from(TABLE)
    assert first.text == "Task: place each cube on the target of its colour.\n<image>"
    assert first.images[0].size == (64, 64)
    lifted = say(env, "pick(0, 0, 20)").observation
    assert lifted.text.endswith("\nResult: picked.")
    back = say(env, "place(0, 0, 20)").observation
    assert lifted.images[0].tobytes() != first.images[0].tobytes() == back.images[0].tobytes()


def test_seeds_give_the_same_episode_in_every_process():
    program = (
        "import hashlib\n"
        "from random import Random\n"
        "from vagentrl.types import Reply\n"
        "from vagentrl_envs.primitive_skill import PrimitiveSkill\n"
        "env = PrimitiveSkill(task='stack', cubes=3, size=48, slip=0.2)\n"
        "for seed in range(3):\n"
        "    env.reset(seed, seed)\n"
        "    rng = Random(seed)\n"
        "    for _ in range(6):\n"
        "        result = env.step(Reply('', actions=env.random_actions(rng)))\n"
        "        image = result.observation.images[0].tobytes()\n"
        "        print(env.scene, hashlib.md5(image).hexdigest())\n"
    )
    assert "red cube" in printed_in_every_process(program)


def test_a_copy_looks_ahead_without_changing_the_original():
    env = start()
    before = env.scene
    ahead = copy.deepcopy(env)
    say(ahead, "push(-50, 0, 20, 40, 0, 20)")
    assert env.scene == before != ahead.scene
    assert ahead.backend.client != env.backend.client  # pyright: ignore
    say(env, "push(-50, 0, 20, 40, 0, 20)")
    assert env.scene == ahead.scene


def test_clients_are_disconnected_at_close():
    import pybullet  # pyright: ignore[reportMissingImports]

    env = start()
    say(env, "push(-50, 0, 20, 40, 0, 20)")
    backend = env.backend
    assert isinstance(backend, PyBullet)
    client = backend.client
    assert pybullet.isConnected(client)
    env.close()
    env.close()
    assert not pybullet.isConnected(client)


def test_a_demonstration_with_predictions():
    format = WorldModeling("structured", action_separator=None)
    env = PrimitiveSkill(task="pick", observation="text", format=format)
    shown = demonstrate(env, Demonstrator(0.5, ()), seed_of("train", 1))
    assert all(env.format.parse(reply).problem is None for reply in shown.replies)


def test_no_scene_is_in_two_splits():
    env = PrimitiveSkill(task="pick", cubes=1, grid=50)
    for split in get_args(Split):
        scenes = {env.initial_state(seed_of(split, index)) for index in range(30)}
        assert len(scenes) >= 8
        assert all(split_of_state(repr(scene)) == split for scene in scenes)


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "juggle"}, {"task": "stack", "cubes": 1}, {"cubes": 6}, {"grid": 0}, {"slip": 1},
        {"size": 8}, {"format": FreeThink()}, {"default_action": "pick(x, y, z)"},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]):
    if "default_action" in settings:
        settings["invalid_action"] = "default"
    with pytest.raises(ConfigError):
        PrimitiveSkill(**settings)
    assert PrimitiveSkill(format=NoThink(action_separator=";")).actions_per_turn == 1
