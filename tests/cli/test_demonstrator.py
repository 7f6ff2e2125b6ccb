"""What the demonstrator of a warm start says and does."""

import json
from functools import partial
from itertools import product
from random import Random

import numpy as np
import pytest

from vagentrl.cli.warmstart import Demonstrator, demonstrate
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.formats import NoThink, WorldModeling
from vagentrl.hints import HintedEnvironment, ScriptedHintModel
from vagentrl.types import Observation, Reply, StepResult
from vagentrl_envs.bandit import Bandit
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.support import CustomerSupport


class Nameless(Environment):
    def system_prompt(self) -> str:
        return ""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        return Observation("")

    def step(self, reply: Reply) -> StepResult:
        return StepResult(Observation(""), 0.0)


def test_a_demonstrator_without_actions_draws_from_those_of_the_episode():
    env, rng = Bandit(format=NoThink()), np.random.default_rng(0)
    best = 0
    for seed in range(400):
        env.reset(seed)
        reply = env.format.parse(Demonstrator(1.0, ()).reply(env, rng))
        assert reply.actions[0] in env.action_names
        best += reply.actions == env.oracle()
    assert best / 400 == pytest.approx(0.5, abs=0.1)  # four standard deviations


def test_a_demonstrator_obeys_as_many_hints_as_it_is_told():
    # a hint in about half of the turns, always wrong; otherwise the oracle is followed
    corridor = partial(FrozenLake, map=["SFFFG"], observation="text", format=NoThink())
    environment = HintedEnvironment(
        corridor, ScriptedHintModel(right=0.0), epsilon=0.0, hint_share=0.5
    )
    rng, obeyed, hinted = np.random.default_rng(0), 0, 0
    for seed in range(0, 2000, 2):
        environment.reset(seed)
        reply = environment.format.parse(Demonstrator(0.0, (), obeys=0.6).reply(environment, rng))
        if environment.hint is None:
            assert reply.actions == ("Right",)
        else:
            hinted += 1
            obeyed += reply.actions == (environment.hint.action,)
    assert 400 < hinted < 600
    assert obeyed / hinted == pytest.approx(0.6, abs=0.11)  # five standard deviations


def test_a_demonstrator_draws_what_is_possible_where_actions_have_no_fixed_names():
    env, rng = CustomerSupport(["device"], format=NoThink(action_separator=None)), Random(0)
    env.reset(0)
    numpy_rng = np.random.default_rng(0)
    drawn = {Demonstrator(1.0, ()).reply(env, numpy_rng) for _ in range(200)}
    possible = {env.format.write(env.random_actions(rng)) for _ in range(2000)}
    assert len(drawn) > 15 and drawn <= possible


def test_a_demonstrator_needs_actions_where_the_environment_names_none():
    with pytest.raises(ConfigError, match="Nameless names no actions"):
        Demonstrator(1.0, ()).reply(Nameless(), np.random.default_rng(0))


def test_short_demonstrations_are_the_first_turns_of_whole_ones():
    env = FrozenLake(observation="text", format=NoThink())
    demonstrator = Demonstrator(0.0, ())
    whole = demonstrate(env, demonstrator, seed=0)
    short = demonstrate(env, demonstrator, seed=0, turns=2)
    assert len(whole.replies) > 2  # a way of six moves
    assert short.observations == whole.observations[:2]
    assert short.replies == whole.replies[:2]


def test_a_demonstrator_says_what_a_random_action_would_lead_to_as_often_as_wanted():
    env = FrozenLake(observation="text", format=WorldModeling("structured"), size=5)
    rng = np.random.default_rng(0)
    wrong = {0.0: 0, 1.0: 0}
    for share, seed in product(wrong, range(60)):
        env.reset(seed)
        reply = env.format.parse(Demonstrator(0.0, (), share).reply(env, rng))
        state = env.state()
        assert state is not None
        wrong[share] += reply.observation_claim != state.structured
        here, said = json.loads(state.structured), json.loads(reply.observation_claim or "")
        down, right = (a - b for a, b in zip(said["player"], here["player"], strict=True))
        assert abs(down) + abs(right) <= 1
    assert wrong[0.0] == 0
    # from the corner two of four random actions change nothing: half are wrong
    assert wrong[1.0] / 60 == pytest.approx(0.5, abs=0.26)  # four standard deviations


def test_the_share_of_wrong_claims_is_a_share():
    with pytest.raises(ConfigError, match=r"claim_noise is 1\.5"):
        Demonstrator(0.0, (), 1.5)
