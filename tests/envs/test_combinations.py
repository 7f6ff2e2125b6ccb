"""Five reply formats times three representations of the state, in each environment with a state.

`NoThink` and `FreeThink` claim nothing, so their three are one: no representation is asked for.
"""

import asyncio
import json
import re
from collections.abc import Callable
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from vagentrl.cli.parser import Parser
from vagentrl.cli.warmstart import Demonstrator
from vagentrl.environment import ActionEnvironment, Environment
from vagentrl.formats import (
    FreeThink,
    Grounding,
    NoThink,
    ReplyFormat,
    TransitionModeling,
    WorldModeling,
)
from vagentrl.rollout.workers import step
from vagentrl.types import Representation
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.sokoban import Sokoban
from vagentrl_judges.exact_state import ExactState

FORMATS: list[type[ReplyFormat]] = [
    NoThink,
    FreeThink,
    Grounding,
    TransitionModeling,
    WorldModeling,
]
ENVIRONMENTS: list[Callable[..., ActionEnvironment]] = [Sokoban, FrozenLake]
COMBINATIONS = list(product(ENVIRONMENTS, FORMATS, get_args(Representation)))
NAMED = pytest.mark.parametrize(
    ("make", "format", "state"),
    COMBINATIONS,
    ids=["-".join((make.__name__, f.__name__, state)) for make, f, state in COMBINATIONS],
)


def settings(format: type[ReplyFormat], state: Representation) -> dict[str, Any]:
    """The ``init_args`` as in a YAML file."""
    return {"state": state} if format.claims else {}


@NAMED
def test_what_the_demonstrator_writes_is_parsed_and_all_right(
    make: Callable[..., ActionEnvironment], format: type[ReplyFormat], state: Representation
):
    env = make(format=format(**settings(format, state)), observation="text", turn_limit=8)
    demonstrator, rng = Demonstrator(0.5, ()), np.random.default_rng(0)
    judge, judged = ExactState(), 0
    for seed in range(5):
        env.reset(seed)
        over = False
        while not over:
            reply = env.format.parse(demonstrator.reply(env, rng))
            assert reply.problem is None
            result, claims = step(env, reply)
            assert tuple(claim.kind for claim in claims) == format.claims
            for claim in claims:
                assert asyncio.run(judge.judge(claim)).score == 1
                assert claim.rubric == env.rubric() != ""
            judged += len(claims)
            over = result.terminated or result.truncated
    assert (judged > 0) == bool(format.claims)


@NAMED
def test_the_system_prompt_explains_the_state_and_gives_an_example(
    make: Callable[..., ActionEnvironment], format: type[ReplyFormat], state: Representation
):
    env = make(format=format(**settings(format, state)))
    prompt = env.system_prompt()
    env.reset(0)
    truth = env.state()
    assert truth is not None
    assert ("Write a state" in prompt) == bool(format.claims)
    if not format.claims:
        return
    match state:
        case "natural":
            assert "rows and columns counted from 0 at the top left" in prompt
            example = prompt.split("for example: ")[-1]
            kinds = re.compile(r"the player|the goal|the box|the target|a hole")
            assert set(kinds.findall(example)) == set(kinds.findall(truth.natural))
        case "structured":
            [pattern] = re.findall(r"\{.*\}", prompt)
            filled = json.loads(pattern.replace("row", "1").replace("column", "2"))
            assert filled.keys() == json.loads(truth.structured).keys()
            assert "rows and columns counted from 0 at the top left" in prompt
        case "symbolic":
            assert env.vocabulary.legend() in prompt  # pyright: ignore
            example = prompt.split("for example:\n")[-1].split("\n")
            assert len({len(row) for row in example}) == 1
            assert set("".join(example)) <= set(env.vocabulary.symbols)  # pyright: ignore


@NAMED
def test_yaml_names_it(
    make: Callable[..., ActionEnvironment], format: type[ReplyFormat], state: Representation
):
    parser = Parser(exit_on_error=False)
    parser.add_argument("--env", type=Environment)
    home = "sokoban.Sokoban" if make is Sokoban else "frozen_lake.FrozenLake"
    written = {
        "class_path": f"vagentrl_envs.{home}",
        "init_args": {
            "format": {
                "class_path": f"vagentrl.formats.{format.__name__}",
                "init_args": settings(format, state),
            }
        },
    }
    env = parser.instantiate_classes(parser.parse_object({"env": written}))["env"]
    assert type(env.format) is format
    assert env.format.state == (state if format.claims else None)


@pytest.mark.parametrize("make", ENVIRONMENTS)
def test_a_state_that_is_symbolic_says_what_the_structured_one_says(
    make: Callable[..., ActionEnvironment],
):
    """A claim may be right in one representation only if it is in the others."""
    env = make(observation="text")
    seen: dict[str, set[tuple[str, str]]] = {}
    for seed in range(200):
        env.reset(seed)
        state = env.state()
        assert state is not None
        seen.setdefault(state.structured, set()).add((state.symbolic, state.natural))
    assert all(len(others) == 1 for others in seen.values())
    assert len({others for each in seen.values() for others in each}) == len(seen)
