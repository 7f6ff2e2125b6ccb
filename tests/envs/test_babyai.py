import re
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

pytest.importorskip("minigrid")

from minigrid.core.world_object import (  # pyright: ignore[reportMissingImports]
    Ball,
    Box,
    Door,
    Key,
    Wall,
)

from vagentrl.environment import Environment, seed_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import FreeThink, Grounding
from vagentrl.types import Reply, StepResult
from vagentrl_envs.babyai import BabyAI, levels
from vagentrl_envs.babyai.environment import ALIASES
from vagentrl_envs.babyai.view import View

TASKS = ("goto", "pickup", "pick_up_seq_go_to", "putnext", "open", "mix")


def play(env: Environment, *actions: str) -> StepResult:
    return env.step(Reply("", actions=actions))


def play_all(env: Environment, actions: tuple[str, ...] | None) -> list[StepResult]:
    assert actions
    return [play(env, action) for action in actions]


def empty_room(**settings: Any) -> BabyAI:
    """A room without things; the agent is at (3, 6) of 8 × 8 cells and faces up."""
    env = BabyAI(**settings)
    env.reset(0)
    level = env.level
    for x in range(1, level.width - 1):
        for y in range(1, level.height - 1):
            level.grid.set(x, y, None)
    level.agent_pos, level.agent_dir = (3, 6), 3
    return env


# ------------------------------------------------------------------------------ what the agent sees


def test_things_are_told_relative_to_the_agent():
    env = empty_room()
    env.level.grid.set(3, 4, Ball("red"))  # 2 ahead
    env.level.grid.set(1, 5, Key("grey"))  # 1 ahead, 2 to the left
    env.level.grid.set(6, 6, Box("blue"))  # 3 to the right
    assert View.of(env.level).sentences() == (
        "You see a red ball 2 steps ahead; a blue box 3 steps to the right; "
        "a grey key 1 step ahead and 2 to the left; "
        # the walls: y = 0 is 6 ahead, x = 0 is 3 to the left; x = 7 on the right is out of view
        "a wall 6 steps ahead; a wall 3 steps to the left.\nYou carry nothing."
    )


def test_after_a_turn_to_the_right_what_was_ahead_is_to_the_left():
    env = empty_room()
    env.level.grid.set(3, 4, Ball("red"))
    play(env, "turn right")
    assert "a red ball 2 steps to the left" in View.of(env.level).sentences()


def test_what_is_behind_a_wall_or_a_closed_door_is_out_of_sight():
    env = empty_room()
    for x in range(1, 7):
        env.level.grid.set(x, 4, Wall())
    door = Door("green")
    env.level.grid.set(3, 4, door)
    env.level.grid.set(3, 2, Ball("red"))
    told = View.of(env.level).sentences()
    assert "a green door 2 steps ahead" in told
    assert "ball" not in told
    door.is_open = True
    told = View.of(env.level).sentences()
    assert "a green open door 2 steps ahead" in told
    assert "a red ball 4 steps ahead" in told


def test_the_state_in_three_representations():
    env = empty_room()
    env.level.grid.set(3, 4, Ball("red"))
    env.level.carrying = Key("grey")
    state = env.state()
    assert state.natural == "a red ball is 2 steps ahead; you carry a grey key"
    assert state.structured == '{"things":[["red ball",2,0]],"carried":"grey key"}'
    # the 7 × 7 view: columns x = 0 … 6, rows y = 0 … 6, the agent in the middle of the last
    assert state.symbolic.split("\n") == [
        "##############",
        *["##____________"] * 3,
        "##____ro______",
        "##____________",
        "##____^^______",
        "carried:ek",
    ]


def test_what_is_carried_is_told_and_can_be_dropped():
    env = empty_room(task="open")
    env.level.grid.set(3, 5, Ball("red"))
    told = play(env, "pick up").observation.text
    assert told.endswith("You carry a red ball.")
    assert play(env, "turn left", "drop").observation.text.endswith("You carry a red ball.")
    assert play(env, "drop").observation.text.endswith("You carry nothing.")
    assert "a red ball 1 step ahead" in View.of(env.level).sentences()


def test_the_image_is_the_agents_view():
    env = BabyAI(observation="image", cell=10)
    observation = env.reset(0)
    assert observation.text.startswith("<image>\nMission: ")
    assert [(image.size, image.mode) for image in observation.images] == [((70, 70), "RGB")]


@pytest.mark.parametrize("state", ["natural", "structured", "symbolic"])
def test_the_prompt_explains_the_representation_that_the_format_asks_for(state: Any):
    with_claims = BabyAI(format=Grounding(state)).system_prompt()
    examples = {
        "natural": "a red ball is 2 steps ahead and 1 to the left; a green door is 4 steps ahead",
        "structured": '{"things":[["red ball",2,-1],["green door",4,0]],"carried":"blue key"}',
        "symbolic": "..__ro______..\n__________..__\n______^^______\ncarried:bk",
    }
    assert examples[state] in with_claims
    assert examples[state] not in BabyAI(format=FreeThink()).system_prompt()


# ----------------------------------------------------------------------------- missions and the bot


@pytest.mark.parametrize("task", TASKS)
def test_the_bots_plan_carries_the_mission_out(task: Any):
    env = BabyAI(task)
    for index in range(6):
        env.reset(seed_of("train", index))
        *before, last = results = play_all(env, env.oracle())
        assert not any(result.terminated for result in before)
        assert (last.terminated, last.metrics["success"]) == (True, 1.0)
        # the library's reward: 1 − 0.9 · steps / limit
        assert last.reward == pytest.approx(1 - 0.9 * len(results) / env.level.max_steps)


def test_the_bot_goes_on_from_wherever_the_agent_went():
    solved, rng = 0, Random(0)
    for index in range(12):
        env = BabyAI("pick_up_seq_go_to")
        env.reset(seed_of("train", index))
        over = False
        for _ in range(15):
            over = over or play(env, rng.choice(["turn left", "go forward", "pick up"])).terminated
        plan = env.oracle()
        if over or plan is None:
            continue
        solved += play_all(env, plan)[-1].metrics["success"] == 1
    assert solved >= 10


def test_asking_the_oracle_changes_nothing():
    def told(asks: bool) -> list[str]:
        env = BabyAI("putnext")
        texts = [env.reset(2).text]
        for action in ("go forward", "turn left", "pick up", "go forward", "turn right"):
            if asks:
                env.oracle()
            texts.append(play(env, action).observation.text)
        return texts

    assert told(asks=True) == told(asks=False)


@pytest.mark.parametrize(
    ("task", "missions"),
    [
        ("goto", r"go to (a|the) "),
        ("pickup", r"pick up (a|the) "),
        ("putnext", r"put (a|the) .* next to (a|the) "),
        ("open", r"open (a|the) .*door"),
        ("pick_up_seq_go_to", r"(pick up .*, then go to .*|go to .* after you pick up .*)"),
    ],
)
def test_missions_are_of_their_kind(task: Any, missions: str):
    env = BabyAI(task)
    for index in range(10):
        mission = env.reset(seed_of("train", index)).text.partition("\n")[0]
        assert re.fullmatch(f"Mission: {missions}.*", mission), mission


def test_a_mix_has_missions_of_every_kind():
    env = BabyAI("mix")
    first = {env.reset(seed_of("train", index)).text.split()[1] for index in range(60)}
    assert first == {"go", "pick", "put", "open"}


def test_a_list_of_tasks_is_drawn_from():
    env = BabyAI(["goto", "pickup"])
    first = [env.reset(seed_of("train", index)).text.split()[1] for index in range(30)]
    assert set(first) == {"go", "pick"}


def test_the_librarys_limit_truncates_and_earns_nothing():
    env = BabyAI(max_steps=3)
    env.reset(0)
    results = [play(env, "turn left") for _ in range(3)]
    assert [(r.terminated, r.truncated) for r in results] == [(False, False)] * 2 + [(False, True)]
    assert results[-1].reward == 0
    with pytest.raises(EnvError, match="call reset"):
        play(env, "turn left")


def test_a_mission_done_with_the_last_step_is_terminated():
    env = BabyAI()
    env.reset(0)
    plan = env.oracle()
    assert plan
    env = BabyAI(max_steps=len(plan))
    env.reset(0)
    last = play_all(env, plan)[-1]
    assert (last.terminated, last.truncated, last.metrics["success"]) == (True, False, 1.0)
    assert last.reward == pytest.approx(0.1)  # 1 − 0.9


def test_aliases_are_repaired_and_counted():
    env = empty_room(actions_per_turn=4, turn_limit=9)
    metrics = play(env, "Move_Forward.", "right", "turn right", "dance").metrics
    assert metrics["valid_actions"] == 0.75
    assert metrics["repaired_actions"] == 0.5
    assert tuple(env.level.agent_pos) == (3, 5)
    assert set(ALIASES.values()) <= set(env.action_names)


def test_a_step_into_a_wall_changes_nothing():
    env = empty_room()
    env.level.agent_pos = (3, 1)
    assert play(env, "go forward").metrics["effective_actions"] == 0.0
    assert play(env, "turn left").metrics["effective_actions"] == 1.0


# ------------------------------------------------------------------------------ seeds and settings


def test_training_and_evaluation_share_no_level():
    env = BabyAI("goto", room_size=5, distractors=1)
    starts = {
        split: {env.initial_state(seed_of(split, index)) for index in range(40)}
        for split in ("train", "validation", "test")
    }
    assert not starts["train"] & (starts["validation"] | starts["test"])
    assert not starts["validation"] & starts["test"]


def test_nothing_is_printed_where_levels_are_rejected(capsys: pytest.CaptureFixture[str]):
    env = BabyAI("putnext", room_size=5, distractors=2)
    for index in range(20):
        env.reset(seed_of("train", index))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BabyAI(room_size=3), "room_size is 3"),
        (lambda: BabyAI(room_size=5, distractors=5), "1 to 4 distractors"),
        (lambda: BabyAI([]), r"task is \[\]; give goto, .*, a list of them, or mix"),
        (lambda: BabyAI(["goto", "goto"]), "task is .*'goto', 'goto'"),
        (lambda: BabyAI(max_steps=0), "max_steps 0"),
        (lambda: BabyAI("putnext", distractors=1), "putnext needs two things"),
        (lambda: BabyAI(aliases={"jump": "leap"}), "aliases stand for leap"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], Environment], message: str):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_mission_that_never_fits_is_an_error(monkeypatch: pytest.MonkeyPatch):
    env = BabyAI("putnext")
    monkeypatch.setattr(levels, "ATTEMPTS", 0)
    with pytest.raises(EnvError, match="no room for 8 things and a putnext mission"):
        env.reset(0)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vagentrl_envs.babyai.levels", None)
    with pytest.raises(ConfigError, match=r"pip install vagentrl\[babyai\]"):
        BabyAI()
