"""Continuations: an episode is replayed to the start of a turn and played on from there."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests import toy
from tests.rollout.test_collector import collector
from vagentrl import ranks
from vagentrl.advantages import Continuations
from vagentrl.engines.base import GenerationRequest, Sampling
from vagentrl.errors import EnvError, RolloutError
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.continuations import chosen_turns, continue_episodes
from vagentrl.rollout.episodes import Episode
from vagentrl.types import Observation, Reply, StepResult, Trajectory

EVERY_TURN = Continuations(count=1, every=1, horizon=None, turn_gamma=1.0)
ALWAYS_GO = [toy.GO]


class Drift(toy.Countdown):
    """A counter that also moves by chance: the transitions matter."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.chance = random.Random(transition_seed)
        return super().reset(seed, transition_seed)

    def step(self, reply: Reply) -> StepResult:
        self.luck = self.chance.randrange(1000)
        return super().step(reply)


class Fading(toy.Countdown):
    """Shows something else whenever it is played again."""

    def __init__(self, plays: list[int]) -> None:
        super().__init__()
        self.plays = plays

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.plays.append(seed)
        return super().reset(seed, transition_seed)

    def observe(self) -> Observation:
        return replace(super().observe(), text=f"{self.left} left, play {len(self.plays)}")


def play(playing: Collector, *episodes: Episode) -> list[Trajectory]:
    return playing.collect(episodes, Sampling())


def continued(
    trajectories: Sequence[Trajectory], wanted: Continuations, playing: Collector
) -> tuple[list[Trajectory], dict[str, float]]:
    collect = partial(playing.collect, sampling=Sampling())
    return continue_episodes(trajectories, wanted, collect, iteration=0)


def values(trajectory: Trajectory) -> list[float | None]:
    return [turn.continued_value for turn in trajectory.turns]


def by_the_seed(request: GenerationRequest) -> str:
    return toy.GO if random.Random(request.seed).random() < 0.5 else toy.WAIT


def test_the_value_of_a_turn_is_what_playing_on_from_it_earned():
    # Three left, at most five turns.
    [played] = play(collector([toy.WAIT, toy.GO, toy.WAIT]), Episode("toy", 2, 0, 100))
    assert [turn.observation.text[0] for turn in played.turns] == ["3", "3", "2", "2", "2"]
    [found], report = continued([played], EVERY_TURN, collector(ALWAYS_GO))
    # From turn 1: three to go, -1/4 -1/4 +1; from turns 2 and 3: two to go, -1/4 +1; turn 4 is the
    # last one, -1/4.
    assert values(found) == [None, 0.5, 0.75, 0.75, -0.25]
    assert report["rollout/continuations"] == 4
    assert report["rollout/continuations_failed"] == 0
    per_turn = len(toy.encode_reply(toy.GO))
    assert report["rollout/continuation_tokens"] == (3 + 2 + 2 + 1) * per_turn
    assert [replace(turn, continued_value=None) for turn in found.turns] == list(played.turns)


def test_a_continuation_is_cut_at_the_horizon_and_discounted():
    [played] = play(collector([toy.WAIT, toy.GO, toy.WAIT]), Episode("toy", 2, 0, 100))
    wanted = Continuations(count=1, every=1, horizon=2, turn_gamma=0.5)
    [found], _ = continued([played], wanted, collector(ALWAYS_GO))
    # From turn 1: -1/4 - 1/8, and the 1 after the horizon is not seen; from turn 2: -1/4 + 1/2
    assert values(found) == [None, -0.375, 0.25, 0.25, -0.25]


@pytest.mark.parametrize("lockstep", [False, True])
def test_continuations_share_the_transitions_before_their_start_but_no_replies(lockstep: bool):
    starts: list[Trajectory] = []

    def keep(playing: Collector, episodes: Sequence[Episode]) -> list[Trajectory]:
        starts.extend(playing.collect(episodes, Sampling()))
        return starts

    make = partial(collector, by_the_seed, Drift, lockstep=lockstep)
    [played] = play(make(), Episode("toy", 3, 0, 107))
    assert len(played.turns) == 5
    wanted = replace(EVERY_TURN, count=8)
    [found], report = continue_episodes([played], wanted, partial(keep, make()), iteration=0)
    assert report["rollout/continuations"] == 4 * 8
    assert report["rollout/continuations_failed"] == 0  # each began with its turn's observation
    from_turn_1 = starts[:8]
    assert {one.transition_seed for one in from_turn_1} == {played.transition_seed}
    assert {one.earlier_turns for one in from_turn_1} == {1}
    replies = {tuple(turn.reply.text for turn in one.turns) for one in from_turn_1}
    assert len(replies) > 3
    mean = sum(one.total_reward for one in from_turn_1) / 8
    assert found.turns[1].continued_value == pytest.approx(mean)


def test_the_choice_of_turns_does_not_depend_on_how_long_the_episode_became():
    [played] = play(collector([toy.WAIT]), Episode("toy", 3, 0, 100))
    firsts = set()
    for seed in range(40):
        whole = [*chosen_turns(replace(played, transition_seed=seed), 3)]
        cut = replace(played, transition_seed=seed, turns=played.turns[:3])
        assert [*chosen_turns(cut, 3)] == [turn for turn in whole if turn < 3]
        assert all(later - earlier == 3 for earlier, later in pairwise(whole))
        firsts.add(whole[0])
    assert firsts == {1, 2, 3}


def test_an_episode_of_one_turn_is_not_continued():
    [played] = play(collector(ALWAYS_GO), Episode("toy", 0, 0, 100))
    [found], report = continued([played], EVERY_TURN, collector([ValueError("not asked")]))
    assert found == played
    assert report["rollout/continuations"] == 0


def test_a_failed_continuation_is_left_out_of_the_mean():
    def fails_once(request: GenerationRequest) -> Any:
        return RuntimeError("no memory") if request.session == 0 else toy.GO

    [played] = play(collector([toy.WAIT]), Episode("toy", 1, 0, 100))
    wanted = replace(EVERY_TURN, count=2)
    [found], report = continued([played], wanted, collector(fails_once))
    assert values(found) == [None, 0.75, 0.75, 0.75, -0.25]
    assert report["rollout/continuations_failed"] == 1
    with pytest.raises(RolloutError, match="all 8 episodes failed"):
        continued([played], wanted, collector([RuntimeError("never")]))


def test_an_environment_that_does_not_replay_is_named():
    plays: list[int] = []
    playing = collector([toy.WAIT], partial(Fading, plays))
    trajectories = play(playing, Episode("toy", 1, 0, 100))
    with pytest.raises(EnvError, match="'toy' shows something else when an episode is replayed"):
        continued(trajectories, EVERY_TURN, playing)


def test_two_ranks_share_the_continuations_of_one_process(monkeypatch: pytest.MonkeyPatch):
    """Each rank plays its share: together the same episodes, with the same seeds."""
    trajectories = play(collector(by_the_seed), *(Episode("toy", 3, n, 100 + n) for n in range(3)))

    def asked(rank: int, world_size: int) -> list[Episode]:
        monkeypatch.setattr(ranks, "rank", lambda: rank)
        monkeypatch.setattr(ranks, "world_size", lambda: world_size)
        monkeypatch.setattr(ranks, "gather", list)
        episodes: list[Episode] = []
        playing = collector(ALWAYS_GO)

        def keep(wanted: Sequence[Episode]) -> list[Trajectory]:
            episodes.extend(wanted)
            return playing.collect(wanted, Sampling())

        continue_episodes(trajectories, replace(EVERY_TURN, count=3), keep, iteration=0)
        return episodes

    alone = asked(0, 1)
    assert len({episode.private_seed for episode in alone}) == len(alone) > 20
    shares = asked(0, 2), asked(1, 2)
    assert [*shares[0], *shares[1]] == [*alone[::2], *alone[1::2]]
