import inspect
import json
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.envs.every_format import EVERY_FORMAT
from tests.processes import printed_in_every_process
from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError
from vagentrl.types import IMAGE_PLACEHOLDER, Reply, StepResult

pytest.importorskip("crafter")

from vagentrl_envs.crafter import Crafter
from vagentrl_envs.crafter.environment import ACHIEVEMENTS, ACTIONS
from vagentrl_envs.crafter.world import OrderedSet, World


def play(env: Crafter, *actions: str) -> StepResult:
    result = None
    for action in actions:
        result = env.step(Reply("", actions=(action,)))
    assert result is not None
    return result


def started(seed: int = 0, transition_seed: int = 0, **settings: Any) -> Crafter:
    env = Crafter(**settings)
    env.reset(seed, transition_seed)
    return env


def put(env: Crafter, material: str, thing: Any = None) -> None:
    """Put a material in front of the player, and a creature on it or none."""
    world, player = env.world.env._world, env.world.player
    place = player.pos + np.array(player.facing)
    if world[place][1] is not None:
        world.remove(world[place][1])
    world[place] = material
    if thing is not None:
        world.add(thing(world, place))


def trace(env: Crafter, seed: int, transition_seed: int, steps: int) -> str:
    """Everything that is where at the end of a game of random actions."""
    env.reset(seed, transition_seed)
    rng = Random(1)
    for _ in range(steps):
        result = env.step(Reply("", actions=env.random_actions(rng)))
        if result.terminated or result.truncated:
            break
    things = [(type(o).__name__, *map(int, o.pos)) for o in env.world.env._world.objects]
    return repr((env.state(), things))


# ---------------------------------------------------------------------------- what the seeds decide


def test_the_actions_and_achievements_are_the_librarys():
    from crafter import constants as library  # pyright: ignore[reportMissingImports]

    constants: Any = library
    assert list(ACTIONS.values()) == constants.actions
    assert list(ACHIEVEMENTS) == constants.achievements


def test_the_same_seeds_and_actions_give_the_same_game():
    one, other = Crafter(), Crafter()
    other.reset(9)  # another game before
    assert trace(one, 4, 1, 60) == trace(other, 4, 1, 60)


@pytest.mark.slow
def test_the_game_is_the_same_in_a_process_that_hashes_otherwise():
    lines = [
        "from random import Random",
        "from vagentrl.types import Reply",
        "from vagentrl_envs.crafter import Crafter",
        inspect.getsource(trace),
        "print(trace(Crafter(), 2, 5, 150))",
    ]
    assert printed_in_every_process("\n".join(lines)).strip() == trace(Crafter(), 2, 5, 150)


def test_members_of_a_group_share_the_world_and_not_what_happens_in_it():
    env = Crafter()
    maps, texts = [], []
    for transition_seed in (1, 2):
        env.reset(4, transition_seed)
        maps.append(env.world.env._world._mat_map.copy())
        texts.append(env.state())
    assert (maps[0] == maps[1]).all() and texts[0] == texts[1]
    assert trace(env, 4, 1, 10) != trace(env, 4, 2, 10)


def test_looking_changes_nothing():
    text, image = Crafter(), Crafter(observation="image", cell=7)
    for env in (text, image):
        env.reset(0)
        env.world.env._step = 190  # the library draws the noise of the night from the game's stream
    for action in ("noop", "move east") * 8:
        play(text, action)
        play(image, action)
        image.frame()
        assert text.state() == image.state()
    assert text.world.light < 0.5


def test_an_ordered_set_keeps_the_order_of_insertion():
    items = OrderedSet()
    for item in "cab":
        items.add(item)
    items.remove("a")
    items.add("a")
    assert list(items) == ["c", "b", "a"] and len(items) == 3


def test_every_seed_has_a_world_of_its_own():
    env = Crafter()
    seeds = [seed_of("train", 0), seed_of("validation", 0), seed_of("test", 0), 2**60, 2**60 + 4]
    world, maps = World(10), set()
    for seed in seeds:
        world.start(seed, 0)
        maps.add(world.env._world._mat_map.tobytes())
    assert len(maps) == len(seeds)
    assert len({env.initial_state(seed) for seed in seeds}) == len(seeds)


# --------------------------------------------------------------------------------------- the rules


def test_an_achievement_earns_one_the_first_time():
    env = started()
    put(env, "tree")
    result = play(env, "do")
    assert (result.reward, result.metrics["achievements"]) == (1, 1)
    put(env, "tree")
    assert play(env, "do").reward == 0
    assert env.world.inventory["wood"] == 2


def test_lost_health_costs_a_tenth_of_each_point():
    env = started()
    env.world.player.health -= 3
    assert play(env, "noop").reward == pytest.approx(-0.3)


def test_death_terminates_and_reports_every_achievement():
    env = started()
    put(env, "tree")
    play(env, "do")
    put(env, "lava")
    result = play(env, {(0, 1): "move south"}[tuple(env.world.player.facing)])
    # the first nine points of health are lost: 9 / 10
    assert result.reward == pytest.approx(-0.9)
    assert result.terminated and not result.truncated
    assert result.metrics["unlocked_collect_wood"] == 1
    assert sum(v for k, v in result.metrics.items() if k.startswith("unlocked_")) == 1
    assert result.metrics["score"] == pytest.approx(1 / 22)
    assert (result.metrics["survived"], result.metrics["success"]) == (0, 0)
    assert env.scripted() is None


def test_the_librarys_limit_truncates_and_does_not_terminate():
    env = started(length=3)
    assert not play(env, "noop", "noop").truncated
    result = play(env, "noop")
    assert result.truncated and not result.terminated
    assert result.metrics["survived"] == 1


def test_the_turn_limit_truncates_before_the_librarys():
    result = play(started(turn_limit=2, length=3), "noop", "noop")
    assert result.truncated and result.metrics["score"] == 0


def test_all_achievements_are_a_success():
    env = started(length=1)
    for name in ACHIEVEMENTS:
        env.world.player.achievements[name] = 1
    assert play(env, "noop").metrics["success"] == 1


def test_the_scripted_player_is_far_better_than_chance():
    env = Crafter()
    env.reset(4)
    for _ in range(150):
        actions = env.scripted()
        assert actions is not None and actions[0] in env.action_names
        if env.step(Reply("", actions=actions)).terminated:
            break
    assert len(env.world.unlocked) >= 8


def test_sleepers_are_told_that_they_do_not_act():
    env = started()
    env.world.player.inventory["energy"] = 3
    play(env, "sleep")
    assert "asleep" in env.state().natural and env.scripted() == ("noop",)


def test_the_scripted_player_is_the_oracle_only_where_that_is_asked_for():
    env = started()
    assert env.oracle() is None
    env.scripted_oracle = True
    assert env.oracle() == env.scripted() is not None


# ------------------------------------------------------------------------------------ what is shown


def test_text_tells_what_is_near_faced_and_owned():
    from crafter import objects  # pyright: ignore[reportMissingImports]

    env = started()
    world = env.world.env._world
    x, y = (int(c) for c in env.world.player.pos)
    for right in range(-4, 5):
        for down in range(-3, 4):
            if (right, down) != (0, 0):
                thing = world[(x + right, y + down)][1]
                if thing is not None:
                    world.remove(thing)
                world[(x + right, y + down)] = "grass"
    world[(x - 2, y + 3)] = "water"
    world[(x - 4, y + 3)] = "water"
    world.add(objects.Cow(world, (x, y + 1)))
    env.world.player.inventory["wood_pickaxe"] = 1
    state = env.state()
    assert state.natural == (
        "You see: cow 1 south, water 2 west 3 south.\nYou face south: cow.\n"
        "You are at health 9, food 9, drink 9, energy 9, of 9 each.\nYou have: 1 wood pickaxe."
    )
    assert json.loads(state.structured) == {
        "nearest": {"cow": [0, 1], "water": [-2, 3]},
        "facing": ["south", "cow"],
        "vitals": {"health": 9, "food": 9, "drink": 9, "energy": 9},
        "inventory": {"wood_pickaxe": 1},
        "asleep": False,
    }
    assert state.symbolic.split("\n")[3:] == [
        "....@....", "....C....", ".........", "~.~......", "facing south",
        "health 9 food 9 drink 9 energy 9 wood_pickaxe 1",
    ]  # fmt: skip


def test_the_picture_is_nine_cells_wide_and_high():
    env = started(observation="image", cell=14)
    result = play(env, "noop")
    assert result.observation.text == IMAGE_PLACEHOLDER
    (image,) = result.observation.images
    assert image.size == (126, 126)
    before = np.asarray(image)[49:77, 56:70]
    turned = np.asarray(play(env, "move west").observation.images[0])
    assert (turned[49:77, 56:70] != before).any()
    assert env.frame().size == (9 * 48, 9 * 48)


@pytest.mark.parametrize("observation", ["text", "grid", "image"])
@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_the_system_prompt_is_complete(format: Any, observation: Any):
    prompt = Crafter(format=format, observation=observation).system_prompt()
    assert len(prompt) < 3500
    for wanted in ("noop, move west", "make iron pickaxe: ", "wake up", "<answer>"):
        assert wanted in prompt
    assert IMAGE_PLACEHOLDER not in prompt


# ------------------------------------------------------------------------------- replies, settings


@pytest.mark.parametrize(
    ("written", "meant"),
    [("move_left", "move west"), ("Up", "move north"), ("interact.", "do"), ("Wait", "noop")],
)
def test_other_spellings_are_repaired_and_counted(written: str, meant: str):
    one, other = started(), started()
    result = play(one, written)
    play(other, meant)
    assert one.state() == other.state()
    assert (result.metrics["repaired_actions"], result.metrics["valid_actions"]) == (1, 1)


def test_an_invalid_action_plays_the_default_and_costs():
    env = started(invalid_action="default", default_action="noop", invalid_penalty=0.1)
    result = play(env, "dance")
    assert result.reward == pytest.approx(-0.1)
    assert env.world.steps == 1 and result.metrics["valid_actions"] == 0


@pytest.mark.parametrize(
    "reply",
    [
        Reply("", problem="no <answer>"),
        Reply("", actions=("",)),
        Reply("", actions=("do\x00", "<|im_end|>", "<image>")),
        Reply("", actions=("do" * 500_000,)),
    ],
)
def test_hostile_replies_play_nothing(reply: Reply):
    env = started(feedback=True)
    result = env.step(reply)
    assert env.world.steps == 0
    assert IMAGE_PLACEHOLDER not in result.observation.text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cell": 3}, "cell is 3"),
        ({"length": 0}, "length is 0"),
        ({"observation": "pixels"}, "observation is 'pixels'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        Crafter(**settings)
