"""A policy plays episodes and answers observations as it did in training."""

from functools import partial

import pytest

import vagentrl
from tests import toy
from tests.end_to_end.environments import AlwaysRaising, Raising
from tests.policy.trained import trained
from vagentrl import Policy, Sampling
from vagentrl.contexts import Window
from vagentrl.engines import TransformersEngine
from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError, RolloutError
from vagentrl.types import Observation

GREEDY = Sampling(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return vagentrl.load_policy(trained("text").checkpoint)


def test_an_environment_plays_and_stays_open(policy: Policy):
    class Closing(toy.Countdown):
        closed = False

        def close(self) -> None:
            self.closed = True

    environment = Closing(turn_limit=2)
    first, again = (policy.play(environment, seed=3) for _ in range(2))
    assert first == again  # the seed decides
    assert first.environment == "Closing" and len(first.turns) == 2
    assert environment.left == 4 and not environment.closed


def test_many_episodes_are_played_side_by_side_and_told_in_order(policy: Policy):
    seeds = [seed_of("validation", index) for index in range(6)]
    together = policy.evaluate(partial(toy.Countdown, turn_limit=2), seeds)
    alone = [policy.play(toy.Countdown(turn_limit=2), seed) for seed in seeds]
    assert [t.seed for t in together] == seeds
    assert [[turn.reply_ids for turn in t.turns] for t in together] == [
        [turn.reply_ids for turn in t.turns] for t in alone
    ]


def test_other_sampling_may_be_asked_for(policy: Policy):
    long = policy.play(toy.Countdown(turn_limit=1), 3, sampling=Sampling(max_tokens=9))
    assert len(long.turns[0].reply_ids) == 9 > policy.sampling.max_tokens


def test_failed_episodes_are_told_and_nothing_but_failures_is_an_error(policy: Policy):
    played = policy.evaluate(Raising, [seed_of("validation", index) for index in range(8)])
    assert 0 < sum(t.error is not None for t in played) < 8
    with pytest.raises(RolloutError, match="no water"):
        policy.play(AlwaysRaising(), 1)


@pytest.mark.parametrize("given", ["Countdown", int])
def test_what_makes_no_environment_is_refused(policy: Policy, given: object):
    with pytest.raises(ConfigError, match="the environment is"):
        policy.evaluate(given, [1])  # pyright: ignore


@pytest.mark.parametrize("kind", ["text", "images", "window"])
def test_a_conversation_says_what_is_said_in_an_episode(kind: str):
    policy = vagentrl.load_policy(trained(kind).checkpoint)
    episode = policy.play(toy.Countdown(kind == "images", turn_limit=4), 3, sampling=GREEDY)
    dialogue = policy.converse(sampling=GREEDY)
    replies = [dialogue.ask(turn.observation) for turn in episode.turns]
    assert replies == dialogue.replies == [turn.reply for turn in episode.turns]
    assert policy.reply(episode.turns[0].observation, sampling=GREEDY) == replies[0]
    dialogue.close()


def test_conversations_do_not_hear_each_other_nor_cost_each_other_their_cache(policy: Policy):
    one, other = policy.converse(sampling=GREEDY), policy.converse(sampling=GREEDY)
    one.ask(Observation("4 left, luck 2"))
    policy.evaluate(partial(toy.Countdown, turn_limit=2), [1, 3, 5, 7])
    assert other.ask(Observation("1 left")) == policy.reply(Observation("1 left"), sampling=GREEDY)
    engine = policy.engine
    assert isinstance(engine, TransformersEngine)
    before = engine.reused_tokens
    one.ask(Observation("3 left, luck 2"))
    first_prompt = policy.renderer.first(toy.TASK, Observation("4 left, luck 2"))
    assert engine.reused_tokens - before >= len(first_prompt)


def test_a_conversations_seed_decides_its_replies_and_each_draws_anew():
    forgetful = vagentrl.load_policy(trained("text").checkpoint, context=Window(turns=0))
    wild = Sampling(temperature=5.0, max_tokens=8)
    said = []
    for seed in (1, 1, 2):
        dialogue = forgetful.converse(sampling=wild, seed=seed)
        said.append([dialogue.ask(Observation("1 left")).text for _ in range(3)])
    assert said[0] == said[1] != said[2]
    assert len(set(said[0])) == 3  # of the same prompt


def test_another_task_may_be_asked_for(policy: Policy):
    seen = Observation("1 left, luck 0")
    as_trained = policy.reply(seen, sampling=GREEDY)
    elsewhere = policy.reply(seen, "Count the sheep on the hill.", sampling=GREEDY)
    assert elsewhere.text != as_trained.text


def test_a_conversation_without_room_says_so(policy: Policy):
    dialogue = policy.converse(sampling=Sampling(max_tokens=500))
    with pytest.raises(ConfigError, match=r"a reply may have 500, but the policy reads 512"):
        dialogue.ask(Observation("1 left"))
