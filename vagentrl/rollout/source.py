"""An iteration's episodes: which are played, with which weights, and when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vagentrl import ranks
from vagentrl.contracts import check_report, check_trajectories
from vagentrl.engines.base import Sampling
from vagentrl.environment import train_seed
from vagentrl.filters import select_groups
from vagentrl.rollout.collector import EnvironmentSlot, Episode, OnEnd, OnTurn
from vagentrl.rollout.report import episode_report
from vagentrl.types import Trajectory, Turn

if TYPE_CHECKING:
    from vagentrl.datamodule import RolloutDataModule
    from vagentrl.modules.agent import AgentModule

log = logging.getLogger(__name__)

TRAIN = "train"
"""Name of the environment that is trained on; others are named in `val_envs`."""


@dataclass
class Collection:
    """What was played for an iteration, what of it is learned from, and how it went."""

    trajectories: list[Trajectory]
    kept: list[Trajectory]
    report: dict[str, float]


class EpisodeSource:
    """Plays the episodes of iterations and evaluations, in their turn or ahead of it.

    Args:
        data: Says what is played, and has the collector that plays it.
    """

    def __init__(self, data: RolloutDataModule) -> None:
        self._data = data
        self._ahead: Future[Collection] | None = None
        self._background = ThreadPoolExecutor(1, "collect")
        slots = 0 if data.turns is None else data.groups * data.group_size
        self.slots = [EnvironmentSlot(partial(self._slot_episode, slot)) for slot in range(slots)]

    def next(self, agent: AgentModule) -> Collection:
        """This iteration's episodes; if the next ones may be stale, they are begun."""
        data = self._data
        if self._ahead is None:
            sync = self._sync(agent)
            collection = self.collect(agent, agent.iteration)
            collection.report["time/sync"] = sync
        else:
            started = time.perf_counter()
            collection, self._ahead = self._ahead.result(), None
            collection.report["time/wait"] = time.perf_counter() - started
        versions = [trajectory.policy_version for trajectory in collection.trajectories]
        staleness = agent.iteration - sum(versions) / len(versions)
        collection.report["rollout/staleness"] = staleness if agent.actor_is_training else 0.0
        more = agent.iteration + 1 < (agent.trainer.max_epochs or 0)
        if data.staleness and more and agent.actor_is_training:
            collection.report["time/sync"] = self._sync(agent)
            self._ahead = self._background.submit(self.collect, agent, agent.iteration + 1)
        else:
            data.engine.rest()
        return collection

    def collect(self, agent: AgentModule, iteration: int) -> Collection:
        """Play an iteration's episodes, more of them while the filter keeps too few."""
        data, engine = self._data, self._data.engine
        tokens, busy, started = engine.sampled_tokens, engine.busy_s, time.perf_counter()
        batches = 1
        if not agent.actor_is_training:  # the same for every round, also for one that is resumed
            iteration, batches = 0, agent.warmup.batches
        wanted = batches * data.groups
        everything: list[Trajectory] = []
        kept: list[list[Trajectory]] = []
        spreads: list[float] = []
        for round in range(data.filter.rounds):
            if data.turns is None:
                episodes = self._training_episodes(iteration, round * wanted, wanted)
                play = partial(data.collector.collect, episodes)
            else:
                turns = batches * data.turns
                slots = ranks.shard(self.slots)
                play = partial(data.collector.collect_turns, slots, turns, iteration=iteration)
            trajectories = self._play(agent, play, data.sampling)
            failed = [t for t in trajectories if t.error is not None]
            played = [t for t in trajectories if t.error is None]
            for callback in agent.agent_callbacks():
                answer = callback.on_trajectories(agent, played)
                played = check_trajectories(callback, "on_trajectories", answer)
            played = _of_all_ranks(played)
            everything += _of_all_ranks(failed) + played
            learnable = [t for t in played if t.error is None]
            groups, round_spreads = select_groups(learnable, data.filter)
            kept += groups
            spreads += round_spreads
            if len(kept) >= wanted:
                break
        if data.filter.rounds > 1:
            kept = kept[:wanted]
        wall, busy = time.perf_counter() - started, engine.busy_s - busy
        sampled = sum(ranks.gather([engine.sampled_tokens - tokens]))
        report = episode_report(everything, "rollout/") | {
            "time/generate": busy,
            "time/environment": wall - busy,
            "rollout/sampled_tokens": float(sampled),
            "rollout/tokens_per_s": sampled / wall,
            "rollout/kept_groups": len(kept) / max(len(spreads), 1),
            "rollout/group_std": sum(spreads) / max(len(spreads), 1),
        }
        for callback in agent.agent_callbacks():
            callback.on_report(agent, report)
            check_report(callback, "on_report", report)
        return Collection(everything, [member for group in kept for member in group], report)

    def evaluate(
        self, agent: AgentModule, environment: str, seeds: Sequence[int]
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """Play episodes with the newest weights, to look at and not to learn from.

        Returns:
            The episodes, and what callbacks have to report of them.
        """
        data = self._data
        episodes = [
            Episode(environment, seed, number, mix(seed, 4), agent.iteration)
            for number, seed in enumerate(seeds)
        ]
        play = partial(data.collector.collect, ranks.shard(episodes))
        self.wait()  # for what was begun with older weights
        self._sync(agent)
        trajectories = self._play(agent, play, data.val_sampling, training=False)
        data.engine.rest()
        report: dict[str, float] = {}
        for callback in agent.agent_callbacks():
            answer = callback.on_evaluation(agent, trajectories, report)
            trajectories = check_trajectories(callback, "on_evaluation", answer)
            check_report(callback, "on_evaluation", report)
        return _of_all_ranks(trajectories), report

    def wait(self) -> None:
        """Until nothing is being played ahead."""
        if self._ahead is not None:
            wait([self._ahead])

    def close(self) -> None:
        self.wait()
        for slot in self.slots:
            slot.close(self._data.collector)

    def state_dict(self) -> dict[str, Any]:
        return {"slots": ranks.gather([slot.state_dict() for slot in ranks.shard(self.slots)])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for slot, state in zip(self.slots, state_dict.get("slots", []), strict=False):
            slot.load_state_dict(state)

    def _training_episodes(self, iteration: int, first: int, count: int) -> list[Episode]:
        seed = self._data.seed
        return [
            Episode(
                TRAIN,
                seed=train_seed(mix(seed, iteration, 2, group)),
                group_id=group,
                private_seed=mix(seed, iteration, 3, group, member),
                iteration=iteration,
            )
            for group in ranks.shard(range(first, first + count))
            for member in range(self._data.group_size)
        ]

    def _slot_episode(self, slot: int, number: int) -> Episode:
        seed = self._data.seed
        return Episode(
            TRAIN,
            seed=train_seed(mix(seed, 5, slot, number)),
            group_id=slot,
            private_seed=mix(seed, 6, slot, number),
        )

    def _sync(self, agent: AgentModule) -> float:
        """Let the engine sample from the current weights; the seconds that it took."""
        started = time.perf_counter()
        self._data.engine.update_weights(agent.actor.policy, agent.iteration)
        return time.perf_counter() - started

    def _play(
        self,
        agent: AgentModule,
        play: Callable[[Sampling, OnEnd, OnTurn], list[Trajectory]],
        sampling: Sampling,
        *,
        training: bool = True,
    ) -> list[Trajectory]:
        callbacks = list(agent.agent_callbacks())

        def on_end(trajectory: Trajectory) -> None:
            for callback in callbacks:
                callback.on_episode_end(agent, trajectory)

        def on_turn(turn: Turn) -> None:
            for callback in callbacks:
                callback.on_turn_end(agent, turn, training=training)

        trajectories = play(sampling, on_end, on_turn)
        if failed := [t for t in trajectories if t.error is not None]:
            log.warning(
                "%d of %d episodes failed; the first: %s",
                len(failed),
                len(trajectories),
                failed[0].error,
            )
        return trajectories


def _of_all_ranks(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """In the order in which one process would have played them."""
    return sorted(ranks.gather(trajectories), key=lambda trajectory: trajectory.group_id)


def mix(*numbers: int) -> int:
    """A 62-bit seed out of several numbers; the same in every process."""
    words: Any = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return int(words[0] >> 2)
