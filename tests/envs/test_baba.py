import json
from collections import deque
from typing import Any

import numpy as np
import pytest

from tests.envs.every_format import EVERY_FORMAT
from tests.processes import printed_in_every_process
from vagentrl.environment import seed_of, split_of_state
from vagentrl.errors import ConfigError
from vagentrl.types import IMAGE_PLACEHOLDER, Reply, StepResult
from vagentrl_envs.baba import Baba
from vagentrl_envs.baba.game import Room, State
from vagentrl_envs.baba.solver import SearchLimit, solve
from vagentrl_envs.baba.sprites import render
from vagentrl_envs.baba.tasks import TASKS, find_tasks
from vagentrl_envs.baba.words import grid, read


def playing(lines: str, **settings: Any) -> Baba:
    env = Baba(**settings)
    env.start_from(*read(lines))
    return env


def play(env: Baba, *actions: str) -> StepResult:
    result = None
    for action in actions:
        result = env.step(Reply("", actions=(action,)))
    assert result is not None
    return result


def shown(env: Baba) -> str:
    return grid(env.room, env.board)


# -------------------------------------------------------------------------------- the rules


def test_entering_the_cell_of_what_wins_wins():
    env = playing("#######\n#@o___#\n#B=Y__#\n#O=!__#\n#######")
    result = play(env, "right")
    assert (result.reward, result.terminated, result.metrics["success"]) == (1, True, 1)


def test_what_has_no_property_is_walked_over():
    env = playing("######\n#@ok_#\n#B=Y_#\n#K=!_#\n######")
    assert not play(env, "right").terminated
    assert play(env, "right").metrics["success"] == 1


def test_text_is_pushed_in_a_row_until_the_border():
    env = playing("########\n#@OK___#\n#B=Y___#\n########")
    play(env, "right")
    assert shown(env).split("\n")[1] == "#_@OK__#"
    play(env, "right", "right")
    assert shown(env).split("\n")[1] == "#___@OK#"
    assert play(env, "right").metrics["effective_actions"] == 0


def test_what_stops_cannot_be_entered_until_its_rule_is_broken():
    env = playing("#######\n#@w___#\n#W=S__#\n#_____#\n#B=Y__#\n#######")
    assert play(env, "right").metrics["effective_actions"] == 0
    play(env, "down")
    assert "wall is stop" not in env.state().natural
    assert play(env, "up", "right").metrics["effective_actions"] == 1


def test_a_pushed_block_stops_where_something_stops():
    env = playing("########\n#@Kw___#\n#W=S___#\n#B=Y___#\n########")
    assert play(env, "right").metrics["effective_actions"] == 0


def test_an_object_that_is_push_is_pushed_and_push_overrules_stop():
    env = playing("########\n#@k____#\n#K=P_w_#\n#B=Y___#\n#K=S___#\n########")
    play(env, "right")
    assert shown(env).split("\n")[1] == "#_@k___#"


def test_a_rule_is_read_to_the_right_and_downwards_only():
    env = playing("#######\n#@_B__#\n#__=__#\n#__Y__#\n#!=K__#\n#######")
    assert json.loads(env.state().structured)["rules"] == ["baba is you"]


def test_a_rule_that_is_made_under_ones_feet_wins():
    # baba pushes BABA down to IS WIN, and is itself what wins now
    env = playing("########\n#@_____#\n#B_____#\n#_=!___#\n#B=Y___#\n########")
    result = play(env, "down")
    assert (result.terminated, result.metrics["success"]) == (True, 1)


def test_an_object_becomes_another():
    env = playing("########\n#ooo___#\n#@O_=K_#\n#B=Y___#\n########")
    play(env, "right")
    assert shown(env).split("\n")[1] == "#kkk___#"
    assert "o" not in shown(env)


def test_key_is_key_protects_keys():
    env = playing("########\n#k_____#\n#@K_=O_#\n#__K=K_#\n#B=Y___#\n########")
    play(env, "right")
    assert shown(env).split("\n")[1] == "#k_____#"
    assert "o" not in shown(env)


def test_breaking_you_ends_the_episode_without_success():
    env = playing("######\n#__@_#\n#B=Y_#\n#____#\n######")
    result = play(env, "down")
    assert (result.reward, result.terminated, result.truncated) == (0, True, False)
    assert result.metrics["success"] == 0
    assert env.oracle() is None
    assert result.observation.text == "Rules: none\nNothing is YOU."


def test_defeat_destroys_you_and_costs_one_only_where_that_is_asked_for():
    lines = "######\n#@d__#\n#B=Y_#\n#D=X_#\n######"
    assert play(playing(lines), "right").reward == 0
    result = play(playing(lines, published_reward=True), "right")
    assert (result.reward, result.terminated) == (-1, True)
    assert result.metrics["success"] == 0


def test_the_published_reward_falls_with_every_action():
    lines = "#######\n#@_o__#\n#B=Y__#\n#O=!__#\n#######"
    # idle, right, right: 1 - 0.9 * 3 / 100
    result = play(playing(lines, published_reward=True), "idle", "right", "right")
    assert result.reward == pytest.approx(0.973)


def test_two_things_that_are_you_move_together():
    env = playing("#######\n#@__k_#\n#B=Y__#\n#K=Y__#\n#######")
    play(env, "right")
    assert shown(env).split("\n")[1] == "#_@__k#"
    play(env, "right")
    assert shown(env).split("\n")[1] == "#__@_k#"


def test_the_limit_truncates():
    env = Baba(turn_limit=12)
    env.reset(0)
    result = play(env, *["idle"] * 12)
    assert result.truncated and not result.terminated


# ------------------------------------------------------------------------- tasks and their levels


def test_the_tasks_are_the_benchmarks_forty():
    names = set(TASKS)
    assert len(names) == 40
    assert sum(not task.two_rooms for task in TASKS.values()) == 10
    assert {
        "goto_win", "make_win-distr_obj-irrelevant_rule", "two_room-goto_win-distr_win_rule",
        "two_room-break_stop-make_win-distr_rule", "two_room-maybe_break_stop-goto_win-distr_obj",
        "two_room-make_you", "two_room-make_you-make_win", "two_room-make_wall_win",
    } <= names  # fmt: skip
    assert "two_room-maybe_break_stop-make_win" not in names


@pytest.mark.parametrize("name", TASKS)
def test_a_level_is_solved_by_the_oracle_and_starts_with_the_rules_of_its_task(name: str):
    task = TASKS[name]
    env = Baba(name)
    env.reset(0)
    rules = json.loads(env.state().structured)["rules"]
    winning = [rule for rule in rules if rule.endswith("is win")]
    assert "baba is you" in rules
    assert ("wall is stop" in rules) == task.wall_stops
    assert len(winning) == (task.goal in ("goto_win", "make_you")) + task.other_win
    plan = env.oracle()
    assert plan is not None and 0 < len(plan) <= 100
    assert play(env, *plan).metrics["success"] == 1


def test_the_places_of_things_are_those_of_the_benchmark():
    text = grid(TASKS["goto_win"].room, TASKS["goto_win"].draw(np.random.default_rng(0)))
    lines = text.split("\n")
    assert lines[6].startswith("#B=Y") and lines[1][2:4] == "=!" and len(lines) == 8
    room, board = TASKS["two_room-make_you"].room, None
    board = TASKS["two_room-make_you"].draw(np.random.default_rng(0))
    lines = grid(room, board).split("\n")
    assert (len(lines), len(lines[0])) == (9, 13)
    assert lines[6].startswith("#B=Y") and lines[1].startswith("#W=S") and lines[1][10:] == "=!#"
    assert all(line[6] == "w" for line in lines[1:-1])


def breadth_first(room: Room, start: State) -> int | None:
    """The length of a shortest solution, by trying every sequence of moves."""
    seen, queue = {start}, deque([(start, 0)])
    while queue:
        state, moves = queue.popleft()
        for direction in range(4):
            step = room.step(state, direction)
            if step.won:
                return moves + 1
            if not step.lost and step.state not in seen:
                seen.add(step.state)
                queue.append((step.state, moves + 1))
    return None


def test_the_solver_agrees_with_breadth_first_search_on_what_can_be_solved():
    rng = np.random.default_rng(0)
    solvable = longer = 0
    for _ in range(12):
        cells = "".join(rng.permutation(list("@oO______")))
        lines = f"#####\n#_=!#\n#{cells[:3]}#\n#{cells[3:6]}#\n#{cells[6:]}#\n#B=Y#\n#####"
        room, board = read(lines)
        shortest, plan = breadth_first(room, board), solve(room, board)
        assert (plan is None) == (shortest is None), lines
        if plan is not None and shortest is not None:
            solvable += 1
            assert len(plan) >= shortest
            longer += len(plan) - shortest
    assert 3 < solvable < 12
    assert longer <= solvable


def test_a_plan_goes_around_what_destroys():
    env = playing("#######\n#B=Y__#\n#@d_o_#\n#_____#\n#D=X__#\n#O=!__#\n#######")
    plan = env.oracle()
    # straight on are three moves, around the door five
    assert plan is not None and len(plan) == 5
    assert play(env, *plan).metrics["success"] == 1


def test_the_search_gives_up_at_its_limit():
    task = TASKS["two_room-make_win"]
    board = task.draw(np.random.default_rng(1))
    with pytest.raises(SearchLimit, match="search_limit is 10"):
        solve(task.room, board, 10)


def test_a_plan_is_followed_to_its_end_without_a_new_search():
    env = Baba("make_win")
    env.reset(4)
    plan = env.oracle()
    assert plan is not None
    for played, action in enumerate(plan):
        assert env.oracle() == plan[played:]
        play(env, action)
    assert env.oracle() == ()


def test_the_seed_decides_which_of_the_tasks_is_played():
    env = Baba(["goto_win", "goto_win-*"])
    names = set()
    for seed in range(0, 40, 2):
        env.reset(seed)
        assert env.task is not None
        names.add(env.task.name)
    assert names == {t.name for t in find_tasks(["goto_win", "goto_win-*"])}


def test_a_level_belongs_to_the_split_of_its_seed():
    env = Baba("goto_win")
    for split in ("train", "validation", "test"):
        for index in range(20):
            env.reset(seed_of(split, index))
            assert split_of_state(shown(env)) == split


def test_members_of_a_group_start_from_the_same_level():
    one, other = Baba("make_win"), Baba("make_win")
    assert one.reset(6, transition_seed=1) == other.reset(6, transition_seed=2)


def test_levels_are_the_same_whatever_python_hashes_to():
    code = (
        "from vagentrl_envs.baba import Baba\n"
        "env = Baba('*')\n"
        "print([(env.reset(s).text, env.oracle()) for s in range(3)])"
    )
    assert "Rules: " in printed_in_every_process(code)


# ------------------------------------------------------------------------------------- what is seen


def test_text_tells_rules_and_places_seen_from_you():
    env = playing("######\n#o__k#\n#_@__#\n#B=Y_#\n#K=!_#\n######")
    assert env.state().structured == (
        '{"rules":["baba is you","key is win"],"cells":{"baba":[[2,2]],"ball":[[1,1]],'
        '"key":[[1,4]],"text BABA":[[3,1]],"text KEY":[[4,1]],"text IS":[[3,2],[4,2]],'
        '"text YOU":[[3,3]],"text WIN":[[4,3]]}}'
    )
    text = env.step(Reply("", problem="no <answer>")).observation.text
    assert text == (
        "Rules: baba is you; key is win\nYou: baba\nball: 1 left 1 up\nkey: 2 right 1 up\n"
        "text BABA: 1 left 1 down\ntext KEY: 1 left 2 down\ntext IS: 1 down, 2 down\n"
        "text YOU: 1 right 1 down\ntext WIN: 1 right 2 down"
    )


def test_a_grid_names_what_lies_below():
    env = playing("######\n#@o__#\n#B=Y_#\n######")
    play(env, "right")
    assert shown(env) == "######\n#_@__#\n#B=Y_#\n######\no below row 1, column 2"
    assert Baba(observation="grid").reset(0).text.startswith("Rules: baba is you; ")


def test_the_picture_shows_every_thing_in_its_cell():
    env = playing("######\n#o__k#\n#_@__#\n#B=Y_#\n######", observation="image", cell=16)
    image = play(env, "idle").observation.images[0]
    assert image.size == (6 * 16, 5 * 16)
    other = playing("######\n#o__k#\n#__@_#\n#B=Y_#\n######")
    cells = [
        np.asarray(picture).reshape(5, 16, 6, 16, 3).swapaxes(1, 2)
        for picture in (image, render(other.room, other.board, 16))
    ]
    differing = (cells[0] != cells[1]).any((2, 3, 4))
    assert np.argwhere(differing).tolist() == [[2, 2], [2, 3]]
    assert playing("###\n#@#\n###").frame().size == (3 * 48, 3 * 48)


def test_every_kind_looks_different_at_any_size():
    for cell in (8, 16, 28):
        pictures = [
            np.asarray(render(*read(f"###\n#{s}#\n###"), cell), dtype=float)
            for s in "_@wokdBWOKD=Y!PSX"
        ]
        for one in range(len(pictures)):
            for other in range(one):
                assert abs(pictures[one] - pictures[other]).max() > 40, (cell, one, other)


@pytest.mark.parametrize("observation", ["text", "grid", "image"])
@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_the_system_prompt_is_complete(format: Any, observation: Any):
    prompt = Baba(format=format, observation=observation).system_prompt()
    assert len(prompt) < 2200
    for wanted in ("idle, up, right, down, left", "<answer>", "WIN", "YOU"):
        assert wanted in prompt
    assert IMAGE_PLACEHOLDER not in prompt


# ------------------------------------------------------------------------------- replies, settings


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Move_Up", "up"),
        ("go left", "left"),
        ("East", "right"),
        ("RIGHT.", "right"),
        ("wait", "idle"),
    ],
)
def test_other_spellings_are_repaired_and_counted(written: str, meant: str):
    lines = "#######\n#_____#\n#_@___#\n#B=Y__#\n#######"
    one, other = playing(lines), playing(lines)
    result = play(one, written)
    play(other, meant)
    assert one.board == other.board
    assert result.metrics["repaired_actions"] == 1 and result.metrics["valid_actions"] == 1
    assert play(playing(lines), "up").metrics["repaired_actions"] == 0
    assert play(playing(lines, repair=False), written).metrics["valid_actions"] == 0


@pytest.mark.parametrize(
    "reply",
    [
        Reply("", problem="no <answer>"),
        Reply("", actions=("",)),
        Reply("", actions=("up\x00", "<|im_end|>", "<image>")),
        Reply("", actions=("up" * 500_000,)),
        Reply("", actions=("ｕｐ", "uр")),  # noqa: RUF001 (look-alikes)
    ],
)
def test_hostile_replies_do_nothing(reply: Reply):
    env = Baba(feedback=True)
    env.reset(0)
    before = env.board
    result = env.step(reply)
    assert env.board == before
    assert IMAGE_PLACEHOLDER not in result.observation.text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tasks": "goto_wim"}, "no task 'goto_wim'"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": 5}, "tasks is 5"),
        ({"tasks": ["goto_win", None]}, "tasks is"),
        ({"observation": "pixels"}, "observation is 'pixels'"),
        ({"cell": 2}, "cell is 2"),
        ({"search_limit": 0}, "search_limit is 0"),
        ({"turn_limit": 0}, "turn_limit is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        Baba(**settings)


def test_the_benchmarks_prefix_is_understood():
    assert find_tasks("env/two_room-make_you")[0].name == "two_room-make_you"
