"""Decides which episodes are played for an iteration or an evaluation, when, with which weights."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from vagentrl import ranks
from vagentrl.devices import same_device
from vagentrl.engines.base import Sampling
from vagentrl.environment import seed_of
from vagentrl.filters import select_groups
from vagentrl.rollout.collection import Collection, CollectionPlan, Drawn, RolloutHooks, Totals
from vagentrl.rollout.collector import Begun, Collector
from vagentrl.rollout.continuations import continue_episodes
from vagentrl.rollout.draws import Draws
from vagentrl.rollout.episodes import EnvironmentSlot, Episode
from vagentrl.rollout.report import episode_report, staleness_report
from vagentrl.rollout.seeds import mix
from vagentrl.types import Trajectory

if TYPE_CHECKING:
    from torch import nn

    from vagentrl.advantages import Continuations
    from vagentrl.rollout.iteration import Iteration

log = logging.getLogger(__name__)

TRAIN = "train"
"""Name of the training environment; `val_envs` names the others."""
SAMPLED = "rollout/sampled_tokens"


class EpisodeSource:
    """Plays the episodes of iterations, possibly some iterations ahead, and of evaluations.

    With a staleness of n, the episodes of the next n iterations are in play while the actor learns.
    Each iteration's weights are given to the engine between two replies, and all episodes go on
    under them. So no turn that iteration i learns from was sampled by weights older than those of
    iteration i - n, and an episode can have turns of different weights.

    Args:
        collector: Plays episodes.
        plan: Which episodes are played for each iteration.
        draws: Draws the world and the initial state of each group.
    """

    def __init__(self, collector: Collector, plan: CollectionPlan, draws: Draws) -> None:
        self.collector = collector
        self.plan = plan
        self.draws = draws
        self._draws_before: dict[int, dict[str, Any]] = {}  # by the batch they were made for
        self._engine = collector.engine
        self._evaluated: int | None = None  # version of the weights of the evaluation in progress
        self._ahead: dict[int, Future[Collection]] = {}  # by the batch
        self._last_totals = Totals.of(self._engine)  # at the end of the last collection
        self._line: ranks.Line | None = None  # for the thread that collects ahead
        self._background = ThreadPoolExecutor(1, "collect")
        slots = 0 if plan.turns is None else plan.groups * plan.group_size
        worlds = draws.assign(slots, mix(plan.seed, 11))
        self.slots = [
            EnvironmentSlot(partial(self._slot_episode, slot, world))
            for slot, world in enumerate(worlds)
        ]

    def next(
        self,
        iteration: Iteration,
        policy: nn.Module,
        hooks: RolloutHooks,
        *,
        upcoming: Sequence[Iteration] = (),
    ) -> Collection:
        """The episodes of an iteration.

        Args:
            iteration: The iteration that learns from them.
            policy: The actor's Hugging Face model; the engine samples from its current weights.
            hooks: Callbacks that see the episodes.
            upcoming: The following iterations, as many as the plan's staleness if there are so
                many. Their episodes are played in the background from now on.
        """
        started, ahead = time.perf_counter(), self._ahead.pop(iteration.batch, None)
        if ahead is None:
            sync = self._sync(policy, iteration.number)
            collection = self.collect(self._draw(iteration), hooks)
            collection.report["time/sync"] = sync
        else:
            collection = ahead.result()
            collection.report["time/wait"] = time.perf_counter() - started
        # The draws of later iterations depend on it; so it is not for the thread that collects.
        self.draws.observe(collection.trajectories)
        collection.report |= self._report_of_epochs()
        collection.report |= staleness_report(collection.trajectories, iteration.number)
        if upcoming and iteration.actor_learns:
            if ahead is not None:
                collection.report["time/sync"] = self._sync(policy, iteration.number)
            for later in upcoming:
                if later.batch not in self._ahead:
                    self._begin(later, hooks)
        else:
            self._engine.rest()
        return collection

    def collect(self, drawn: Drawn, hooks: RolloutHooks, begun: Begun | None = None) -> Collection:
        """Play an iteration's episodes, and play more rounds while the filter keeps too few.

        Args:
            drawn: What to play.
            hooks: Callbacks that see the episodes.
            begun: The episodes of the first round, if they are being played already.
        """
        plan, engine, iteration = self.plan, self._engine, drawn.iteration
        since = max(
            drawn.since, self._last_totals
        )  # iterations that are in play at once share the time
        wanted = iteration.batches * plan.groups
        everything: list[Trajectory] = []
        kept: list[list[Trajectory]] = []
        spreads: list[float] = []
        for round in range(plan.filter.rounds):
            episodes = drawn.episodes
            if round > 0:
                episodes = self._training_episodes(iteration.batch, round * wanted, wanted)
            played, failed = self._play_round(iteration, episodes, hooks, begun)
            begun = None
            everything += failed + played
            learnable = [t for t in played if t.error is None]
            groups, round_spreads = select_groups(learnable, plan.filter)
            kept += groups
            spreads += round_spreads
            if len(kept) >= wanted:
                break
        if plan.filter.rounds > 1:
            kept = kept[:wanted]
        learned, continued = [member for group in kept for member in group], {}
        if plan.continuations is not None:
            learned, continued = self._continue(learned, plan.continuations, iteration, hooks)
        self._last_totals = until = Totals.of(engine)
        wall, busy = until.at_s - since.at_s, until.busy_s - since.busy_s
        sampled = {SAMPLED: float(until.tokens - since.tokens)}
        counts = ranks.sum_counts(sampled | engine.counts())
        report = episode_report(everything, "rollout/") | {
            "time/generate": busy,
            "time/environment": wall - busy,
            **counts,
            "rollout/tokens_per_s": counts[SAMPLED] / wall,
            "rollout/kept_groups": len(kept) / max(len(spreads), 1),
            "rollout/group_std": sum(spreads) / max(len(spreads), 1),
            **continued,
            **_report_of_worlds(everything, drawn.weights),
        }
        hooks.on_report(report)
        return Collection(everything, learned, report)

    def _draw(self, iteration: Iteration) -> Drawn:
        """Draw an iteration's first episodes; only in the main thread, where nothing else draws."""
        batch, state = iteration.batch, self.draws.state_dict()
        current = min(self._ahead, default=batch) - 1  # that of the iteration before the next
        self._draws_before = {
            number: earlier for number, earlier in self._draws_before.items() if number >= current
        } | {batch: state}
        groups = iteration.batches * self.plan.groups
        episodes = [] if self.slots else self._training_episodes(batch, 0, groups)
        return Drawn(iteration, self.draws.weights(batch), episodes, Totals.of(self._engine))

    def _begin(self, iteration: Iteration, hooks: RolloutHooks) -> None:
        """Play an iteration's episodes in the background."""
        line = self._line = self._line or ranks.Line()
        select_device, drawn = same_device(), self._draw(iteration)
        on_turn = partial(hooks.on_turn_end, training=True)
        sampling, on_end = self.plan.sampling, hooks.on_episode_end
        begun = self.collector.begin(drawn.episodes, sampling, on_end, on_turn)

        def collect() -> Collection:
            select_device()
            with line.taken():
                return self.collect(drawn, hooks, begun)

        self._ahead[iteration.batch] = self._background.submit(collect)

    def _continue(
        self,
        trajectories: list[Trajectory],
        wanted: Continuations,
        iteration: Iteration,
        hooks: RolloutHooks,
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """Play continuations of these episodes; returns them with their values, and metrics."""
        started = time.perf_counter()
        trajectories, report = continue_episodes(
            trajectories,
            wanted,
            partial(
                self.collector.collect,
                sampling=self.plan.sampling,
                on_end=hooks.on_continuation_end,
            ),
            iteration.batch,
        )
        return trajectories, report | {"time/continue": time.perf_counter() - started}

    def _play_round(
        self,
        iteration: Iteration,
        episodes: Sequence[Episode],
        hooks: RolloutHooks,
        begun: Begun | None,
    ) -> tuple[list[Trajectory], list[Trajectory]]:
        """Play some groups on all ranks; returns the episodes to learn from, and failed ones."""
        play = partial(self.collector.collect, episodes)
        if self.plan.turns is not None:
            turns, slots = iteration.batches * self.plan.turns, ranks.shard(self.slots)
            play = partial(self.collector.collect_turns, slots, turns, iteration=iteration.batch)
        if begun is not None:
            trajectories = self.collector.finish(begun)
        else:
            on_turn = partial(hooks.on_turn_end, training=True)
            trajectories = play(self.plan.sampling, hooks.on_episode_end, on_turn)
        failed = _of_all_ranks([t for t in trajectories if t.error is not None])
        played = hooks.on_trajectories([t for t in trajectories if t.error is None])
        played = _of_all_ranks(played)
        _warn_of_failures(failed, len(failed) + len(played))
        return played, failed

    def evaluate(
        self,
        environment: str,
        seeds: Sequence[int],
        sampling: Sampling,
        policy: nn.Module,
        hooks: RolloutHooks,
        *,
        version: int,
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """Play evaluation episodes, which are reported and not learned from.

        Further environments are evaluated with the weights that the engine got for the first one,
        until `end_evaluation`.

        If a seed occurs several times, its episodes start from the same state but differ in the
        randomness of transitions and of sampling.

        Args:
            environment: Name of the environment.
            seeds: The seed of each episode. The ranks share the episodes.
            sampling: How replies are sampled.
            policy: The actor's Hugging Face model.
            hooks: Callbacks that see the episodes.
            version: Version of the policy's weights: the number of completed iterations.

        Returns:
            The trajectories of all ranks, and the metrics that the hooks added.
        """
        played: Counter[int] = Counter()
        episodes: list[Episode] = []
        for number, seed in enumerate(seeds):
            private_seed = mix(seed, 4, played[seed])
            episodes.append(Episode(environment, seed, number, private_seed, version))
            played[seed] += 1
        play = partial(self.collector.collect, ranks.shard(episodes))
        self.wait()  # the engine may still be sampling from older weights
        if self._evaluated != version:
            self._sync(policy, version)
            self._evaluated = version
        on_turn = partial(hooks.on_turn_end, training=False)
        trajectories = play(sampling, hooks.on_episode_end, on_turn)
        report: dict[str, float] = {}
        trajectories = _of_all_ranks(hooks.on_evaluation(trajectories, report))
        failed = [t for t in trajectories if t.error is not None]
        _warn_of_failures(failed, len(trajectories))
        return trajectories, report

    def end_evaluation(self) -> None:
        """Let the engine free its memory after the last environment was evaluated."""
        self._evaluated = None
        self._engine.rest()

    def wait(self) -> None:
        """Wait until no episodes are being played in the background."""
        wait(self._ahead.values())

    def forget(self) -> None:
        """Drop episodes that were played ahead for an earlier run, and its last evaluation."""
        self._evaluated = None
        self.wait()
        self.collector.cancelled = False
        if self._ahead:  # their batches will be drawn again
            self.draws.load_state_dict(self._draws_at(min(self._ahead)))
        self._ahead.clear()

    def abandon(self) -> None:
        """End episodes in the background as soon as possible: the run has failed."""
        if self._ahead:
            self.collector.cancel()

    def close(self) -> None:
        """Wait for episodes in the background, and release the persistent environments."""
        self.wait()
        if self._line is not None:
            self._line.close()
            self._line = None
        for slot in self.slots:
            slot.close(self.collector)
        self.collector.close()

    def state_dict(self, batch: int) -> dict[str, Any]:
        """What a resumed run needs that plays this batch of episodes next."""
        return {
            "slots": ranks.gather([slot.state_dict() for slot in ranks.shard(self.slots)]),
            "draws": self._draws_at(batch),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._draws_before = {}
        if "draws" in state_dict:
            self.draws.load_state_dict(state_dict["draws"])
        for slot, state in zip(self.slots, state_dict.get("slots", []), strict=False):
            slot.load_state_dict(state)

    def _draws_at(self, batch: int) -> dict[str, Any]:
        """The state from which this batch is drawn, with all that the curriculum has seen."""
        now = self.draws.state_dict()
        # The batch may have been drawn already, to be played ahead.
        before = self._draws_before.get(batch, now)
        return now | {"visited": before["visited"]}

    def _report_of_epochs(self) -> dict[str, float]:
        """How often the starts of each world were gone through, where they are numbered."""
        names, report = list(self.draws.worlds), {}
        for world in names:
            if (epochs := self.draws.epochs(world)) is not None:
                report[f"{_prefix(world, names)}epochs"] = epochs
        return report

    def _training_episodes(self, batch: int, first: int, count: int) -> list[Episode]:
        drawn = enumerate(self.draws.draw(batch, first, count), first)
        return [
            Episode(
                world,
                seed=seed,
                group_id=group,
                private_seed=mix(self.plan.seed, batch, 3, group, member),
                iteration=batch,
            )
            for group, (world, seed) in ranks.shard(list(drawn))
            for member in range(self.plan.group_size)
        ]

    def _slot_episode(self, slot: int, world: str, number: int) -> Episode:
        seed = self.plan.seed
        return Episode(
            world,
            seed=seed_of("train", mix(seed, 5, slot, number)),
            group_id=slot,
            private_seed=mix(seed, 6, slot, number),
        )

    def _sync(self, policy: nn.Module, version: int) -> float:
        """Let the engine sample from the current weights; returns the seconds that it took."""
        started, change = time.perf_counter(), partial(self._engine.update_weights, policy, version)
        if self._ahead:
            self.collector.between_replies(change)
        else:
            change()
        return time.perf_counter() - started


def _report_of_worlds(
    trajectories: Sequence[Trajectory], weights: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of each world, if there are several."""
    report: dict[str, float] = {}
    for world, weight in weights.items() if len(weights) > 1 else ():
        own, prefix = [t for t in trajectories if t.environment == world], _prefix(world, weights)
        report |= episode_report(own, prefix) | {f"{prefix}weight": weight}
    return report


def _prefix(world: str, worlds: Sized) -> str:
    """What the metrics of a world begin with."""
    return f"rollout/{world}/" if len(worlds) > 1 else "rollout/"


def _warn_of_failures(failed: Sequence[Trajectory], played: int) -> None:
    if failed:
        log.warning("%d of %d episodes failed; the first: %s", len(failed), played, failed[0].error)


def _of_all_ranks(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """All ranks' trajectories, in the order in which a single process would return them."""
    return sorted(ranks.gather(trajectories), key=lambda trajectory: trajectory.group_id)
