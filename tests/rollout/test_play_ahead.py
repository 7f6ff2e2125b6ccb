"""Episodes of several iterations are in play while the actor learns."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from tests import toy
from vagentrl.curricula import Curriculum
from vagentrl.engines.base import Generation, GenerationRequest, Sampling
from vagentrl.engines.scripted import ScriptedEngine
from vagentrl.environment import Environment
from vagentrl.filters import KeepAll
from vagentrl.rollout.collection import Collection, CollectionPlan
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.draws import Draws, World
from vagentrl.rollout.iteration import Iteration
from vagentrl.rollout.source import EpisodeSource
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Observation, Reply, StepResult, Trajectory

POLICY = torch.nn.Linear(1, 1)
END = 6
"""Number of iterations of a run."""


class Watched(ScriptedEngine):
    """Knows whether a reply is being sampled, and where it is used."""

    def __init__(self) -> None:
        super().__init__([toy.GO], toy.encode_reply)
        self.prepare(toy.renderer().vocabulary(512))
        self.changed = threading.Condition()
        self.sampling, self.at_updates = 0, []
        self.threads: set[str] = set()
        self.begun = Counter[int]()

    async def generate(self, request: GenerationRequest) -> Generation:
        self.threads.add(threading.current_thread().name)
        self.sampling += 1
        await asyncio.sleep(0.002 * (request.seed % 3))
        self.sampling -= 1
        return await super().generate(request)

    def update_weights(self, policy: torch.nn.Module, version: int) -> None:
        self.at_updates.append((version, self.sampling))
        with self.changed:
            super().update_weights(policy, version)
            self.changed.notify_all()

    def rest(self) -> None:
        self.at_updates.append(("rest", self.sampling))

    def begins(self, iteration: int) -> None:
        """An episode of this iteration has its first reply."""
        with self.changed:
            self.begun[iteration] += 1
            self.changed.notify_all()

    def wait_until_begun(self, iterations: range, episodes: int) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: all(self.begun[each] == episodes for each in iterations), 20
            )

    def wait_for(self, version: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.policy_version >= version, 20)


class Waiting(toy.Countdown):
    """An episode of two turns; the first step ends when the engine has certain weights."""

    def __init__(self, engine: Watched, wanted: Callable[[int], int]) -> None:
        super().__init__()
        self.engine, self.wanted = engine, wanted

    def at_iteration(self, iteration: int) -> None:
        self.iteration = iteration

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        if self.turns == 1:
            self.engine.begins(self.iteration)
        self.engine.wait_for(self.wanted(self.iteration))
        return replace(result, terminated=self.turns == 2)


class Hooks:
    """Sees episodes in no other way than a run without callbacks."""

    def on_turn_end(self, turn: Any, *, training: bool) -> None: ...

    def on_episode_end(self, trajectory: Trajectory) -> None: ...

    def on_continuation_end(self, trajectory: Trajectory) -> None: ...

    def on_trajectories(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        return trajectories

    def on_report(self, report: dict[str, float]) -> None: ...

    def on_evaluation(self, trajectories: list[Any], report: dict[str, float]) -> list[Any]:
        return trajectories


@contextmanager
def source_of(
    environment: Callable[[], Environment],
    staleness: int,
    *,
    engine: Watched | None = None,
    draws: Draws | None = None,
    workers: int = 64,
    groups: int = 3,
) -> Iterator[EpisodeSource]:
    engine = engine or Watched()
    pools = {"train": WorkerPool(environment, "train", size=workers, timeout_s=30)}
    collector = Collector(engine, toy.renderer(), pools, 512, background=staleness > 0)
    plan = CollectionPlan(groups, 2, None, KeepAll(), Sampling(), staleness=staleness, seed=0)
    source = EpisodeSource(collector, plan, draws or Draws([World("train")]))
    try:
        yield source
    finally:
        source.close()
        pools["train"].close()


def batch(
    source: EpisodeSource,
    number: int,
    hooks: Any = None,
    policy: torch.nn.Module = POLICY,
    end: int = END,
) -> Collection:
    """What an iteration of a run with ``end`` iterations learns from."""
    ahead = range(number + 1, min(number + 1 + source.plan.staleness, end))
    return source.next(
        Iteration(number, batch=number),
        policy,
        hooks or Hooks(),
        upcoming=[Iteration(later, batch=later) for later in ahead],
    )


def versions(collection: Collection) -> set[tuple[int, ...]]:
    return {tuple(t.policy_version for t in each.turns) for each in collection.kept}


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_an_episode_goes_on_under_newer_weights_and_each_turn_says_by_which_it_was_sampled(
    staleness: int,
):
    engine = Watched()
    # An episode of batch b ends only after the weights of iteration b - 1 have come.
    environment = partial(Waiting, engine, lambda iteration: iteration - 1)
    with source_of(environment, staleness, engine=engine) as source:
        for number in range(END):
            collection = batch(source, number)
            assert len(collection.kept) == 6
            begun, ended = max(number - staleness, 0), max(number - 1, 0)
            assert versions(collection) == {(begun, ended)}
            ages = number - begun, number - ended
            assert collection.report["rollout/staleness"] == sum(ages) / 2
            assert collection.report["rollout/staleness_max"] == ages[0] <= staleness
            engine.wait_until_begun(range(number + 1, min(number + 1 + staleness, END)), 6)


class Uneven(toy.Countdown):
    """An episode of so many turns, which all take one to five times as long as a unit."""

    def __init__(self, length: int = 8, unit_s: float = 0.001) -> None:
        super().__init__()
        self.length, self.unit_s = length, unit_s

    def step(self, reply: Reply) -> StepResult:
        time.sleep(self.unit_s * (1 + self.luck % 5))
        return replace(super().step(reply), terminated=self.turns >= self.length)


def test_weights_change_only_between_replies_and_in_the_thread_that_samples():
    engine = Watched()
    with source_of(Uneven, 3, engine=engine, groups=16) as source:
        played = set().union(*(versions(batch(source, number)) for number in range(END)))
    assert any(len(set(of_turns)) > 1 for of_turns in played)  # they did change in mid-episode
    assert all(list(of_turns) == sorted(of_turns) for of_turns in played)
    assert engine.at_updates == [*((number, 0) for number in range(END - 1)), ("rest", 0)]
    assert engine.threads == {"play"}


@pytest.mark.parametrize("workers", [64, 2])
def test_the_states_and_replies_are_those_of_a_run_that_collects_and_learns_in_turn(workers: int):
    def played(staleness: int) -> list[Any]:
        with source_of(toy.Countdown, staleness, workers=workers) as source:
            return [
                [(t.seed, t.group_id, [turn.reply for turn in t.turns]) for t in kept.trajectories]
                for kept in [batch(source, number) for number in range(END)]
            ]

    assert played(0) == played(1) == played(4)


class Numbered(toy.Countdown):
    """Has seven initial states to train on."""

    def start_count(self, split: str) -> int | None:
        return 7 if split == "train" else None


class Counting(Curriculum):
    """Counts the groups that it has seen; its state would be lost with a state of long ago."""

    def __init__(self) -> None:
        self.seen = 0

    def observe(self, results: Any) -> None:
        self.seen += len(results)

    def weight(self, world: str) -> float:
        return 1.0

    def pass_over(self, world: str, start: int) -> float:
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.seen = state_dict["seen"]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_resumed_run_goes_through_the_same_states(staleness: int):
    def draws() -> Draws:
        return Draws([World("train", starts=7)], Counting())

    def seeds(source: EpisodeSource, first: int, end: int) -> list[list[int]]:
        return [[t.seed for t in batch(source, n).trajectories] for n in range(first, end)]

    with source_of(Numbered, staleness, draws=draws()) as source:
        whole = seeds(source, 0, 3)
        state = source.state_dict(3)
        whole += seeds(source, 3, END)
    assert state["draws"]["curriculum"] == {"seen": 3 * 3}
    with source_of(Numbered, staleness, draws=draws()) as resumed:
        resumed.load_state_dict(state)
        assert seeds(resumed, 3, END) == whole[3:]
    passed = [seed // 2 for seeds_of_batch in whole for seed in seeds_of_batch[::2]]
    assert sorted(passed[:7]) == list(range(7))  # an epoch has every state


@pytest.mark.parametrize("staleness", [1, 3])
def test_another_run_draws_what_was_played_ahead_again(staleness: int):
    with source_of(Numbered, staleness, draws=Draws([World("train", starts=7)])) as source:
        batch(source, 0)
        second = [t.seed for t in batch(source, 1).trajectories]
        source.forget()
        assert not source._ahead
        third = [t.seed for t in batch(source, 2).trajectories]
    with source_of(Numbered, 0, draws=Draws([World("train", starts=7)])) as source:
        plain = [[t.seed for t in batch(source, number).trajectories] for number in range(3)]
    assert [second, third] == plain[1:]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_every_token_counts_in_one_iteration(staleness: int):
    engine = Watched()
    with source_of(Uneven, staleness, engine=engine) as source:
        counts = [batch(source, number).report["rollout/sampled_tokens"] for number in range(END)]
    assert sum(counts) == engine.sampled_tokens
    if staleness < 2:  # iterations are not in play at once
        assert len(set(counts)) == 1


def test_an_evaluation_waits_for_all_that_is_in_play_and_has_the_newest_weights():
    engine, ended = Watched(), []

    class Telling(Hooks):
        def on_episode_end(self, trajectory: Trajectory) -> None:
            ended.append(trajectory.group_id)

    with source_of(toy.Countdown, 3, engine=engine) as source:
        batch(source, 0, Telling())
        played, _ = source.evaluate("train", (1, 3), Sampling(), POLICY, Hooks(), version=1)
        assert len(ended) == 4 * 6  # of batch 0 and of three later ones
        assert {turn.policy_version for t in played for turn in t.turns} == {1}
        source.end_evaluation()
        assert batch(source, 1).report["rollout/staleness"] == 1


class Sick(Hooks):
    def on_trajectories(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        if trajectories[0].turns[0].policy_version == 0 and self.calls():
            raise RuntimeError("the judge is ill")
        return trajectories

    def __init__(self) -> None:
        self.calls = iter([False, False, True]).__next__


def test_an_error_of_a_later_batch_is_raised_where_that_batch_is_wanted():
    with source_of(toy.Countdown, 3) as source:
        hooks = Sick()
        assert batch(source, 0, hooks).kept and batch(source, 1, hooks).kept
        with pytest.raises(RuntimeError, match="the judge is ill"):
            batch(source, 2, hooks)


class Endless(toy.Countdown):
    """Never ends in the iterations after the first, until it is let go."""

    began, free = threading.Event(), threading.Event()

    def at_iteration(self, iteration: int) -> None:
        self.iteration = iteration

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        if not self.iteration:
            return result
        self.began.set()
        self.free.wait(20)
        return replace(result, terminated=False)

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        return super().reset(seed, transition_seed)


def test_a_run_that_fails_ends_what_is_in_play_and_another_one_can_begin():
    with source_of(Endless, 2, workers=2) as source:
        batch(source, 0)
        assert Endless.began.wait(20)
        source.abandon()
        Endless.free.set()
        with pytest.raises(CancelledError):
            batch(source, 1)
        assert "play" not in [thread.name for thread in threading.enumerate()]
        source.forget()
        assert len(batch(source, 0).kept) == 6
        source.abandon()
    assert "play" not in [thread.name for thread in threading.enumerate()]
