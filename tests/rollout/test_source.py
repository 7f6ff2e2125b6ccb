"""When the engine gets weights for an evaluation."""

from types import SimpleNamespace
from typing import Any

import torch

from vagentrl.engines.base import Sampling
from vagentrl.filters import KeepAll
from vagentrl.rollout.collection import CollectionPlan
from vagentrl.rollout.source import EpisodeSource

POLICY = torch.nn.Linear(1, 1)


class CountingEngine:
    """Keeps what it is told."""

    sampled_tokens, busy_s = 0, 0.0

    def __init__(self) -> None:
        self.told: list[Any] = []

    def update_weights(self, policy: torch.nn.Module, version: int) -> None:
        self.told.append(version)

    def rest(self) -> None:
        self.told.append("rest")


class NoHooks:
    def on_turn_end(self, *_: Any, **__: Any) -> None: ...

    def on_episode_end(self, *_: Any) -> None: ...

    def on_evaluation(self, trajectories: list[Any], report: dict[str, float]) -> list[Any]:
        return trajectories


def source_of(engine: CountingEngine) -> EpisodeSource:
    collector: Any = SimpleNamespace(engine=engine, collect=lambda *_, **__: [])
    draws: Any = SimpleNamespace(assign=lambda slots, seed: [])
    plan = CollectionPlan(1, 1, None, KeepAll(), Sampling(), staleness=0, seed=0)
    return EpisodeSource(collector, plan, draws)


def evaluate(source: EpisodeSource, version: int) -> None:
    hooks: Any = NoHooks()
    source.evaluate("train", (), Sampling(), POLICY, hooks, version=version)


def test_the_environments_of_an_evaluation_share_one_update_of_the_engine():
    engine = CountingEngine()
    source = source_of(engine)
    for _ in range(3):
        evaluate(source, 4)
    source.end_evaluation()
    assert engine.told == [4, "rest"]


def test_the_next_evaluation_updates_the_engine_again():
    # Same version, but weights may have been swapped meanwhile, and the engine has rested.
    engine = CountingEngine()
    source = source_of(engine)
    evaluate(source, 4)
    source.end_evaluation()
    evaluate(source, 4)
    source.forget()  # another run, perhaps of another policy
    evaluate(source, 4)
    evaluate(source, 5)
    assert engine.told == [4, "rest", 4, 4, 5]
