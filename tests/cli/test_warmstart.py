import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from vagentrl.cli import warmstart
from vagentrl.cli.warmstart import Demonstrator, Stage, demonstrate, perception
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.formats import Grounding, NoThink, WorldModeling
from vagentrl.hints import HintedEnvironment, ScriptedHintModel
from vagentrl.models.tiny import TinyModel
from vagentrl.types import (
    Observation,
    Prompt,
    Reply,
    RolloutBatch,
    StepResult,
    Trajectory,
    Turn,
)
from vagentrl_envs.bandit import Bandit
from vagentrl_envs.frozen_lake import FrozenLake


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


def test_perception_is_judged_on_the_episode_that_was_played_where_moves_slip():
    env = FrozenLake(
        map="8x8", slip=0.9, observation="text", turn_limit=20, format=Grounding("structured")
    )
    observation, turns = env.reset(0, transition_seed=7), []
    for number in range(6):  # the truth, but in the last turn
        state = env.state()
        reply = env.format.parse(env.format.write(["Right"], observation=state))
        if number == 5:
            reply = env.format.parse(reply.text.replace('"player"', '"nobody"'))
        turns.append(Turn(observation, Prompt((1,)), (2,), (0.0,), reply, 0.0, "stop"))
        observation = env.step(reply).observation
    played = Trajectory("lake", 0, 0, tuple(turns), "truncated", transition_seed=7)
    assert perception(env, [played]) == 5 / 6
    slipped_otherwise = perception(env, [replace(played, transition_seed=8)])
    assert slipped_otherwise is not None and slipped_otherwise < 5 / 6


def test_a_stage_is_repeated_until_the_model_errs_enough(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    success = iter([0.6, 0.5, 0.3])
    seeds: list[list[int]] = []

    def clone(policy: object, demonstrations: Iterable[RolloutBatch], stage: Stage) -> None:
        batch = next(iter(demonstrations))
        seeds.append(batch.input_ids.sum(-1).tolist())

    monkeypatch.setattr(warmstart, "clone", clone)
    monkeypatch.setattr(warmstart, "success_in_training", lambda env, folder: next(success))
    monkeypatch.setattr(warmstart, "evaluate", lambda env, folder, seeds: {"success_rate": 0.3})
    warmstart.warmstart(
        lambda: FrozenLake(map="4x4", observation="text", turn_limit=8, format=NoThink()),
        actions=(),
        stages=[Stage(0.1, steps=4), Stage(0.9, steps=4, until=0.4)],
        output="model",
        model=TinyModel(images=False, vocabulary=300, layers=1),
        tokenizer_episodes=5,
    )
    assert len(seeds) == 4  # the first stage once, the second until 0.3
    assert len(set(map(tuple, seeds))) == 4  # each time on other demonstrations
    assert "until=0.4" in Path("model/README.md").read_text()


def test_a_stage_too_short_for_its_cycle_is_refused():
    with pytest.raises(ConfigError, match="steps is 3; a cycle of learning rates takes at least 4"):
        Stage(0.5, steps=3)


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
