import json
from collections import Counter, defaultdict
from typing import Any, get_args

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS as GYMNASIUM_MAPS
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from tests.envs.every_format import EVERY_FORMAT
from tests.processes import printed_in_every_process
from vagentrl.environment import Split, seed_of
from vagentrl.errors import ConfigError
from vagentrl.formats import Grounding
from vagentrl.types import IMAGE_PLACEHOLDER, Reply, StepResult
from vagentrl_envs.frozen_lake import MAPS, FrozenLake, Lake, Vocabulary, ways
from vagentrl_envs.frozen_lake_sprites import atlas

GYMNASIUM_ACTIONS = ("Left", "Down", "Right", "Up")
OWN = ["SFF", "FHF", "FFG"]


def play(env: FrozenLake, *actions: str) -> StepResult:
    return env.step(Reply("", actions=actions))


def on_own_map(**settings: Any) -> FrozenLake:
    env = FrozenLake(map=OWN, **settings)
    env.reset(0)
    return env


# ------------------------------------------------------------------- the rules, and Gymnasium's


def test_the_maps_are_gymnasiums():
    assert {name: list(lines) for name, lines in MAPS.items()} == GYMNASIUM_MAPS


@pytest.mark.parametrize("name", ["4x4", "8x8"])
@pytest.mark.parametrize(
    ("theirs", "slip"),
    [
        ({"is_slippery": False}, 0.0),
        ({"is_slippery": True}, 2 / 3),
        ({"is_slippery": True, "success_rate": 0.7}, 0.3),
    ],
)
def test_the_transitions_are_gymnasiums(name: str, theirs: dict[str, Any], slip: float):
    table = FrozenLakeEnv(map_name=name, **theirs).P
    lake, start = Lake.parse(MAPS[name])
    env = FrozenLake(map=name, turn_limit=100)  # pyright: ignore[reportArgumentType]
    rows, columns = lake.size
    assert len(table) == rows * columns and start == (0, 0)
    for state, actions in table.items():
        cell = divmod(state, columns)
        over = cell == lake.goal or cell in lake.holes
        for number, wanted in actions.items():
            direction = env.action_names.index(GYMNASIUM_ACTIONS[number])
            expected: dict[Any, float] = defaultdict(float)
            for probability, after, reward, terminated in wanted:
                expected[(*divmod(after, columns), float(reward), bool(terminated))] += probability
            got: dict[Any, float] = defaultdict(float)
            for way, probability in ways(direction, slip).items():
                if over:  # our game has ended: nothing moves and nothing is paid
                    got[(*lake.move(cell, way), 0.0, True)] += probability
                    continue
                env.start_from(lake, cell)
                result = play(env, env.action_names[way])
                assert env.player == lake.move(cell, way)
                got[(*env.player, result.reward, result.terminated)] += probability
            assert {k: v for k, v in got.items() if v} == pytest.approx(dict(expected))


def test_moves_slip_as_often_as_they_should():
    env = FrozenLake(map=["FFF", "FSF", "FFG"], slip=0.6)
    seen = Counter()
    for transition_seed in range(4000):
        env.reset(0, transition_seed)
        play(env, "Up")
        seen[env.player] += 1
    # up 0.4, left 0.3, right 0.3; one standard deviation is at most 0.008
    assert set(seen) == {(0, 1), (1, 0), (1, 2)}
    for cell, share in {(0, 1): 0.4, (1, 0): 0.3, (1, 2): 0.3}.items():
        assert seen[cell] / 4000 == pytest.approx(share, abs=0.03)


def test_the_goal_earns_one_and_ends_in_success():
    env = on_own_map(actions_per_turn=4, reward_scale=0.5, step_cost=0.1)
    result = play(env, "Down", "Down", "Right", "Right")
    assert result.reward == pytest.approx(0.5 * (1 - 4 * 0.1))
    assert result.terminated and not result.truncated
    assert result.metrics["success"] == 1
    assert env.oracle() == ()


def test_a_hole_ends_the_game_with_nothing():
    env = on_own_map()
    assert play(env, "Right").reward == 0
    result = play(env, "Down")
    assert (result.reward, result.terminated, result.metrics["success"]) == (0, True, 0)
    assert env.oracle() is None


def test_the_edge_stops_a_move():
    result = play(on_own_map(), "Up")
    assert (result.reward, result.metrics["effective_actions"]) == (0, 0)
    assert not result.terminated


def test_the_limit_truncates():
    result = play(on_own_map(turn_limit=4, actions_per_turn=4), "Up")
    assert not result.truncated
    env = FrozenLake(map=["SG"], turn_limit=1)
    env.reset(0)
    assert play(env, "Left").truncated


# ------------------------------------------------------------------------- what the seeds decide


def test_members_of_a_group_share_the_lake_but_not_the_slips():
    env = FrozenLake(size=6, slip=0.5, random_start=True, hole_share=0.1, min_solution=5)
    paths = []
    for transition_seed in (1, 2, 1):
        env.reset(4, transition_seed)
        path = [(env.lake, env.player)]
        for action in ("Up", "Down") * 4:
            if play(env, action).terminated:
                break
            path.append((env.lake, env.player))
        paths.append(path)
    assert paths[0] == paths[2] != paths[1]
    assert paths[0][0] == paths[1][0]


def test_no_lake_is_in_two_splits():
    env = FrozenLake(size=(3, 4), hole_share=0.25, random_start=True)
    lakes = {}
    for split in get_args(Split):
        lakes[split] = set()
        for index in range(400):
            env.reset(seed_of(split, index))
            lakes[split].add(env.lake)
    assert len(lakes["train"]) > 50
    assert len(lakes["validation"]) >= 5 and len(lakes["test"]) >= 5
    assert sum(map(len, lakes.values())) == len(set().union(*lakes.values()))


def test_a_seed_gives_the_same_lake_in_every_process():
    program = (
        "from vagentrl_envs.frozen_lake import FrozenLake\n"
        "env = FrozenLake(size=5, random_start=True, observation='text', slip=0.5)\n"
        "from vagentrl.types import Reply\n"
        "for seed in range(20):\n"
        "    print(env.reset(seed, 7).text)\n"
        "    print(env.step(Reply('', actions=('Up',))).observation.text)\n"
    )
    assert printed_in_every_process(program).count("\n") > 100


@pytest.mark.parametrize("random_start", [False, True])
def test_the_oracle_reaches_the_goal_within_the_limits(random_start: bool):
    env = FrozenLake(size=5, hole_share=0.3, random_start=random_start, min_solution=3)
    starts = set()
    for seed in range(60):
        env.reset(seed)
        starts.add(env.player)
        plan = env.oracle()
        assert plan is not None and 3 <= len(plan) <= 12
        for left in range(len(plan), 0, -1):
            plan = env.oracle()
            assert plan is not None and len(plan) == left
            result = play(env, plan[0])
            assert result.terminated == (left == 1) == bool(result.metrics["success"])
    assert (len(starts) > 10) if random_start else (starts == {(0, 0)})


def test_the_oracle_goes_the_shortest_way():
    env = FrozenLake(map=["SFFF", "HHHF", "FFGF"])
    env.reset(0)
    assert env.oracle() == ("Right", "Right", "Right", "Down", "Down", "Left")


def test_a_map_of_ones_own_is_played_from_its_start_or_from_anywhere():
    assert {on_own_map().player for _ in range(3)} == {(0, 0)}
    env = FrozenLake(map=OWN, random_start=True, min_solution=2)
    starts = set()
    for seed in range(100):
        env.reset(seed)
        starts.add(env.player)
    # (1, 2) and (2, 1) are one move from the goal
    assert starts == {(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)}


# ------------------------------------------------------------------------------- what is shown


def test_text_shows_where_the_player_is():
    env = on_own_map(observation="text")
    assert env.reset(0).text == "P__\n_O_\n__G"
    assert play(env, "Right").observation.text == "_P_\n_O_\n__G"
    assert play(env, "Down").observation.text == "___\n_X_\n__G"
    env.start_from(env.lake, (1, 2))
    assert play(env, "Down").observation.text == "___\n_O_\n__*"


def test_the_state_in_its_three_representations():
    state = on_own_map().state()
    assert state.structured == '{"player":[0,0],"goal":[2,2],"holes":[[1,1]]}'
    assert state.symbolic == "P__\n_O_\n__G"
    assert state.natural == (
        "the player is at row 0, column 0; the goal is at row 2, column 2; "
        "a hole is at row 1, column 1"
    )


def test_another_vocabulary_names_the_same_lake():
    old = FrozenLake(observation="text", random_start=True)
    new = FrozenLake(observation="text", random_start=True, vocabulary="new")
    assert old.reset(7).text.translate(str.maketrans("_OGPX*", ".VFA!@")) == new.reset(7).text
    assert old.state().structured == new.state().structured
    assert "pit" in new.state().natural and "hole" not in new.system_prompt()
    assert play(new, "north").metrics["valid_actions"] == 1
    assert play(old, "north").metrics["valid_actions"] == 0


def test_the_picture_shows_the_lake():
    env = FrozenLake(size=(4, 6), cell=14, random_start=True, turn_limit=30)
    sprites = atlas(14)
    for seed in range(10):
        observation = env.reset(seed)
        for action in ("Up", "Left", "Down", "Right", "Down", "Left"):
            (image,) = observation.images
            assert observation.text == IMAGE_PLACEHOLDER
            assert image.size == (6 * 14, 4 * 14)
            cells = np.asarray(image).reshape(4, 14, 6, 14, 3).swapaxes(1, 2)
            matches = (cells[:, :, None] == sprites).all((3, 4, 5))
            assert (matches.sum(-1) == 1).all()
            assert (matches.argmax(-1) == env.lake.codes(env.player)).all()
            result = play(env, action)
            observation = result.observation
            if result.terminated:
                break


@pytest.mark.parametrize("cell", [8, 14, 28, 64])
def test_sprites_differ_clearly_at_any_size(cell: int):
    sprites = atlas(cell).astype(float)
    for one in range(6):
        for other in range(one):
            assert abs(sprites[one] - sprites[other]).mean() > 4, (one, other)


def test_the_frame_is_for_people_whatever_the_agent_sees():
    assert on_own_map(observation="text").frame().size == (3 * 48, 3 * 48)


@pytest.mark.parametrize("observation", ["image", "text"])
@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_the_system_prompt_is_short_and_complete(format, observation):
    prompt = FrozenLake(format=format, observation=observation, slip=2 / 3).system_prompt()
    assert len(prompt) < 900
    for wanted in ("Up, Down, Left, Right", "<answer>", "hole", "goal", "67%"):
        assert wanted in prompt
    assert ("pennant" in prompt) == (observation == "image")


def test_the_schema_of_a_structured_state_is_json():
    schema = FrozenLake(format=Grounding("structured")).system_prompt().splitlines()[-1]
    keys = list(json.loads(on_own_map().state().structured))
    assert [schema.index(f'"{key}"') for key in keys] == sorted(
        schema.index(f'"{key}"') for key in keys
    )


# --------------------------------------------------------------------------------- bad settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": 2, "random_start": True}, "different lakes: . for train, . for validation"),
        ({"size": 4, "hole_share": 0.0}, "each split needs 5"),
        ({"size": 8}, "turn_limit"),  # fourteen moves in twelve turns
        ({"size": 1}, "size is"),
        ({"size": (4, 1)}, "size is"),
        ({"hole_share": 1.0}, "hole_share 1.0"),
        ({"slip": 1.1}, "slip is 1.1"),
        ({"step_cost": -0.1}, "step_cost is -0.1"),
        ({"cell": 0}, "cell is 0"),
        ({"min_solution": 13}, "min_solution is 13.*after 12 moves"),
        ({"map": "4x4", "size": 4}, "map decides both"),
        ({"map": ["SF", "G"]}, "lines of equal length"),
        ({"map": ["SS", "FG"]}, "one S and one G"),
        ({"map": "5x5"}, "4x4 or 8x8"),
        ({"map": ["SHG"]}, "no start"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        FrozenLake(**settings)


def test_a_vocabulary_must_tell_things_apart():
    with pytest.raises(ConfigError, match="six different"):
        Vocabulary(symbols="__GPX*")
