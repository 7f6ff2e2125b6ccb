"""The tasks that seeds draw, and the expert that solves them."""

from collections import Counter
from random import Random
from typing import get_args

import pytest

from tests.processes import printed_in_every_process
from vagentrl.environment import Split, seed_of
from vagentrl.types import Reply
from vagentrl_envs.support import CustomerSupport
from vagentrl_envs.support.drawing import draw_task, identity
from vagentrl_envs.support.families import FAMILIES
from vagentrl_envs.support.phone import ACTIONS, Phone, operate, repairs
from vagentrl_envs.support.tasks import Family


def act(env: CustomerSupport, action: str):
    return env.step(Reply("", actions=(action,)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("terse", [False, True])
def test_every_task_is_solved_by_the_expert(family: Family, terse: bool):
    env = CustomerSupport([family], terse=terse)
    starts = set()
    for index in range(10):  # 6 families in 2 wordings: 120 tasks
        env.reset(seed_of("train", index))
        starts.add(identity(env.task))
        plan = env.oracle()
        assert plan is not None and 3 <= len(plan) <= 20
        results = []
        for number, action in enumerate(plan):
            if number % 3 == 1:
                assert env.oracle() == plan[number:]
            assert not env.case.end
            results.append(act(env, action))
        end = results[-1]
        assert end.terminated and end.metrics["success"] == 1 and end.reward == 1
        assert not any(result.terminated or result.reward for result in results[:-1])
        assert env.case.world == env.task.goal
        assert env.oracle() == ()
    assert len(starts) >= 9


def test_every_variant_is_drawn():
    env = CustomerSupport()
    drawn = Counter(
        (task.family, task.variant)
        for task in (draw_task(2 * index, env.families) for index in range(300))
    )
    for family, variants in {
        "plan": {"upgrade", "downgrade", "bound", "overdue"},
        "refund": {"doubled", "correct", "old"},
        "suspended": {"1 bills", "2 bills"},
        "transfer": {"fraud", "refund", "identity", "cancel"},
    }.items():
        assert {variant for name, variant in drawn if name == family} == variants
    faults = {len(variant.split("+")) for name, variant in drawn if name == "device"}
    assert faults == {1, 2, 3, 4}


def test_a_number_of_faults_is_kept_to():
    for index in range(30):
        task = draw_task(2 * index, ["device", "data"], faults=(2, 2))
        assert len(task.variant.split("+")) == 2
        assert task.start.screen() not in ("data works", "data is slow") or "+" in task.variant


def test_the_splits_share_no_start():
    starts: dict[str, set[str]] = {}
    for split in get_args(Split):
        tasks = [draw_task(seed_of(split, index), tuple(FAMILIES)) for index in range(40)]
        starts[split] = set(map(identity, tasks))
    assert sum(map(len, starts.values())) == len(set().union(*starts.values()))
    assert min(map(len, starts.values())) > 30


def test_a_case_about_the_phone_alone_is_told_apart_by_the_phone():
    tasks = [draw_task(seed_of("validation", index), ["device"]) for index in range(40)]
    training = [draw_task(seed_of("train", index), ["device"]) for index in range(200)]
    assert {task.start.phone for task in tasks}.isdisjoint(task.start.phone for task in training)


def test_a_seed_gives_the_same_episode_in_every_process():
    program = (
        "from vagentrl_envs.support import CustomerSupport\n"
        "from vagentrl.types import Reply\n"
        "env = CustomerSupport()\n"
        "for seed in range(8):\n"
        "    print(env.reset(seed).text, env.state(), env.initial_state(seed))\n"
        "    env.reset(seed)\n"
        "    for action in env.oracle():\n"
        "        print(action, env.step(Reply('', actions=(action,))))\n"
    )
    assert len(printed_in_every_process(program)) > 5_000


def test_the_expert_finds_its_way_back_from_random_actions():
    env, rng, solved = CustomerSupport(["device", "suspended"], terse=True), Random(0), 0
    for index in range(40):
        env.reset(2 * index)
        for _ in range(3):
            if env.case.end:
                break
            before = env.case
            act(env, env.random_actions(rng)[0])
            assert env.case.talk.history[: len(before.talk.history)] == before.talk.history
        plan = env.oracle()
        if plan is None:  # a forbidden write, or an early end
            assert env.case.end
            continue
        assert [act(env, action).metrics["success"] for action in plan][-1] == 1
        solved += 1
    assert solved > 10


def test_random_actions_can_all_be_read():
    env, rng = CustomerSupport(terse=True), Random(1)
    env.reset(0)
    known = 0
    for _ in range(300):
        (action,) = env.random_actions(rng)
        text = env._play(env.case, action, env.user).text
        known += not text.startswith("Error: write") and "argument" not in text
    assert known == 300


def test_repairs_lead_from_any_phone_to_any_other():
    rng = Random(0)
    for _ in range(50):
        phones = [Phone(), Phone()]
        for index in range(2):
            for command in rng.choices(list(ACTIONS), k=6):
                phones[index] = operate(phones[index], command)
        phone = Phone(apn="wrong", sim="loose", stale=True) if rng.random() < 0.5 else phones[0]
        for command in repairs(phone, phones[1]):
            phone = operate(phone, command)
        assert phone == phones[1]
