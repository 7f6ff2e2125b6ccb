"""The environment: rewards, limits, hostile replies, settings, the customer's patience."""

import copy
import itertools
import json
from typing import Any

import pytest

from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import Grounding, NoThink
from vagentrl.types import Reply
from vagentrl_envs.support import CustomerSupport
from vagentrl_envs.support.drawing import draw_task
from vagentrl_envs.support.phone import repairs
from vagentrl_envs.support.prompting import rules_for
from vagentrl_envs.support.tools import TOOLS

HOSTILE = (
    "", " ", "\x00", "close()\x00", "<image>", "say[<image><image>]", "<|im_end|>",
    "say[<|im_start|>system]", "say[\u202eoff\u200b airplane]", "cl\u043ese()", "\ud800",
    "\U0001f642" * 999,
    "x" * 1_000_000, "say[" + "a" * 1_000_000 + "]", "[" * 5000, "{" * 5000, '{"name":' * 9,
    "say[{0} {about} %s]", "f(" + "a=1," * 400 + ")", "9" * 1999, '{"name": ' + "9" * 1900 + "}",
)  # fmt: skip


def act(env: CustomerSupport, action: str):
    return env.step(Reply(action, actions=(action,)))


@pytest.mark.parametrize("action", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_actions_are_answered_and_change_no_world(action: str):
    env = CustomerSupport(terse=True)
    for seed in range(4):
        env.reset(seed)
        world = env.case.world
        result = act(env, action)
        assert env.case.world == world
        assert result.observation.images == () and len(result.observation.text) < 1000
        assert "<image>" not in result.observation.text
        env.frame()


def test_a_malformed_reply_is_answered_and_costs_its_penalty():
    env = CustomerSupport(format=NoThink(action_separator=None), format_penalty=0.3)
    env.reset(0)
    result = env.step(env.format.parse("<answer></answer>"))
    assert result.reward == -0.3 and result.observation.text == "Error: <answer> is empty"
    assert result.metrics["format_valid"] == 0 and not result.terminated
    reply = env.format.parse("<answer>verify(customer=C1, pin=2)</answer>")
    assert reply.actions == ("verify(customer=C1, pin=2)",)


def test_turns_and_errors_cost_what_is_set():
    env = CustomerSupport(turn_cost=0.25, error_penalty=0.5, success_reward=2.0)
    env.reset(0)
    assert act(env, "nonsense").reward == -0.75
    plan = env.oracle()
    assert plan is not None
    rewards = [act(env, action).reward for action in plan]
    assert rewards == [-0.25] * (len(plan) - 1) + [1.75]


def test_the_limit_truncates_and_the_end_terminates():
    env = CustomerSupport(["device"], turn_limit=2)
    env.reset(0)
    assert not act(env, "say[hello]").truncated
    result = act(env, "say[hello]")
    assert result.truncated and not result.terminated
    with pytest.raises(EnvError, match="call reset"):
        act(env, "close()")
    env.reset(0)
    act(env, "say[hello]")
    result = act(env, "close()")
    assert result.terminated and not result.truncated and result.metrics["success"] == 0


@pytest.mark.parametrize(
    "reply", ["close()", "transfer(reason=cancel)", "transfer(reason=identity)", "say[no]"]
)
def test_no_constant_reply_solves_anything(reply: str):
    env = CustomerSupport(turn_limit=4)
    for index in range(16):
        env.reset(seed_of("validation", index))
        result = act(env, reply)
        while not (result.terminated or result.truncated):
            result = act(env, reply)
        assert result.metrics["success"] == 0


def test_a_task_is_solved_only_if_the_customer_was_told():
    seed = next(s for s in range(0, 400, 2) if draw_task(s, ["refund"]).variant == "correct")
    env = CustomerSupport(["refund"])
    env.reset(seed)
    plan = env.oracle()
    assert plan is not None
    for action in plan[:-2]:
        act(env, action)
    assert env.case.world.database == env.task.goal.database  # nothing was to be changed
    assert plan[-2].startswith("say[This is not possible")
    blind = copy.deepcopy(env)
    assert act(blind, "close()").metrics["success"] == 0
    assert [act(env, action).metrics["success"] for action in plan[-2:]] == [0, 1]


def test_a_needless_change_of_the_phone_spoils_the_end():
    env = CustomerSupport(["device"])
    env.reset(0)
    plan = env.oracle()
    assert plan is not None
    other = "off" if env.task.goal.phone.wifi else "on"
    for action in (f"say[wifi {other}]", *plan[:-1]):
        act(env, action)
    assert env.case.world.screen() == "data works"
    assert env.oracle() == (
        f"say[Please turn Wi-Fi {'off' if other == 'on' else 'on'}.]",
        "close()",
    )
    assert act(env, "close()").metrics["success"] == 0


def test_a_customer_who_understands_nothing_hangs_up():
    env = CustomerSupport(["device"])
    personas = {}
    for seed in range(0, 40, 2):
        env.reset(seed)
        texts = []
        while not env.case.end:
            texts.append(act(env, "say[fnord]"))
        personas[env.task.persona.name] = len(texts)
        assert texts[-1].terminated and texts[-1].metrics["hung_up"] == 1
        assert env.oracle() is None
    assert personas == {"calm": 4, "careful": 4, "hurried": 2}


BLIND = (  # mends every fault of a telephone, whatever it shows
    "airplane off", "data on", "saver off", "vpn off", "mode auto", "apn reset", "sim reseat",
)  # fmt: skip


def solved_by(script: tuple[str, ...], episodes: int = 60) -> float:
    """Success of a script that asks for the same in every episode and reads no answer."""
    env = CustomerSupport(["device"], faults=(1, 3), terse=True)
    successes = 0
    for index in range(episodes):
        env.reset(seed_of("train", index))
        for action in (*(f"say[{command}]" for command in script), "close()"):
            if act(env, action).terminated:
                break
        successes += env.case.success
    return successes / episodes


def test_no_script_that_reads_nothing_solves_most_cases_of_the_phone():
    assert solved_by((*BLIND, "restart")) == 0  # at least 4 of its 7 requests repair nothing
    # A careful customer does only the first thing of a message, so three of these seven.
    three_at_once = (", ".join(BLIND[:3]), ", ".join(BLIND[3:6]), "sim reseat", "restart")
    assert solved_by(three_at_once) < 0.1
    undone = ("airplane on", "airplane off", "data off", "data on", "saver on", "saver off")
    assert solved_by((*undone, "vpn on", "vpn off", "mode 2g", "mode auto")) == 0
    # Two requests that repair nothing are put up with, so three fixed ones fit most cases: they
    # solve 3/7 of the cases with one fault, 3/21 with two and 1/35 with three, 0.2 on average.
    scripts = itertools.combinations(BLIND, 3)
    assert max(solved_by((*script, "restart")) for script in scripts) < 0.4


def test_an_agent_that_reads_the_settings_is_never_needless():
    env = CustomerSupport(["device", "data", "suspended"])
    for index in range(30):
        env.reset(seed_of("train", index))
        for action in env.oracle() or ():
            act(env, action)
        assert env.case.success and env.case.talk.needless == 0


def test_the_third_needless_request_ends_the_call_and_a_restart_is_never_needless():
    env = CustomerSupport(["device"])
    env.reset(0)
    wifi = env.case.world.phone.wifi
    way, back = ("off", "on") if wifi else ("on", "off")
    for text, needless in (
        ("restart", 0),
        (f"wifi {way}", 1),  # spoils what was right
        (f"wifi {back}", 1),  # undoes it
        (f"wifi {back}", 2),  # changes nothing
    ):
        assert not act(env, f"say[{text}]").terminated
        assert env.case.talk.needless == needless
    result = act(env, f"say[wifi {back}]")
    assert result.terminated and result.metrics["hung_up"] == 1
    assert "after 2 requests that repair nothing" in env.system_prompt()


def test_a_careful_customer_does_one_thing_at_a_time():
    env = CustomerSupport(["device"], faults=(4, 4), terse=True)
    did = {}
    for seed in range(0, 40, 2):
        env.reset(seed)
        needed = repairs(env.case.world.phone, env.task.goal.phone)  # four at least
        result = act(env, f"say[{', '.join(needed)}]")
        did[env.task.persona.name] = result.metrics["user_actions"]
        assert result.observation.text.endswith("slowly")
    assert did == {"calm": 3, "careful": 1, "hurried": 3}


def test_the_device_alone_needs_few_tools():
    env = CustomerSupport(["device"], terse=True, format=NoThink(action_separator=None))
    assert list(env.tools) == ["close", "transfer"]
    assert "find_customer" not in env.system_prompt() and len(env.system_prompt()) < 200
    env.reset(0)
    assert "no such tool" in act(env, "list_plans()").observation.text
    prompt = CustomerSupport().system_prompt()
    assert all(f"- {tool.signature()}: " in prompt for tool in TOOLS.values())
    assert len(rules_for(CustomerSupport().families)) == 15


def test_the_state_says_the_same_in_three_representations():
    env = CustomerSupport(["device"])
    env.reset(0)
    env.step(Reply("", actions=("say[airplane on]",)))
    state = env.state()
    fields = json.loads(state.structured)
    assert fields["airplane"] == "on" and fields["screen"] == "airplane symbol"
    assert state.symbolic == "\n".join(f"{name}={value}" for name, value in fields.items())
    assert "airplane mode is on" in state.natural and "shows airplane symbol" in state.natural
    for name in ("natural", "structured", "symbolic"):
        format = Grounding(name, action_separator=None)
        prompt = CustomerSupport(format=format).system_prompt()
        assert "the phone and its line, for example: " in prompt


def test_a_picture_shows_the_conversation():
    env = CustomerSupport()
    env.reset(0)
    first = env.frame()
    act(env, "say[What is your phone number?]")
    assert env.frame().size[0] == first.size[0] and env.frame().size[1] > first.size[1]
    for _ in range(60):
        act(env, f"say[{'hello ' * 40}]") if not env.case.end and env.case.turns < 30 else None
    assert env.frame().size[1] < 1600


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"families": []}, "families is"),
        ({"families": ["gardening"]}, "families is .'gardening'"),
        ({"faults": (0, 2)}, "faults is"),
        ({"faults": (3, 2)}, "faults is"),
        ({"faults": (1, 5)}, "faults is"),
        ({"turn_limit": 0}, "turn_limit is 0"),
        ({"turn_cost": -1.0}, "turn_cost is -1.0"),
        ({"error_penalty": -1.0}, "error_penalty is -1.0"),
        ({"format_penalty": -1.0}, "format_penalty is -1.0"),
        ({"format": NoThink()}, "action_separator is ','"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        CustomerSupport(**settings)
