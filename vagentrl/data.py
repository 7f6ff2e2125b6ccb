"""Collects episodes, and serves them as minibatches: one epoch is one iteration."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from vagentrl.advantages import AdvantageEstimator
from vagentrl.contexts import Context, FullHistory
from vagentrl.engine import Engine, Sampling
from vagentrl.engines import TransformersEngine
from vagentrl.environment import Environment, held_out_seed, train_seed
from vagentrl.errors import ConfigError
from vagentrl.filters import GroupFilter, KeepAll, select_groups
from vagentrl.losses import PolicyLoss
from vagentrl.models.load import checkpoint_path, context_length, load_config
from vagentrl.rollout.collate import collate
from vagentrl.rollout.collector import Collector, Episode, Lane, OnEnd, OnTurn
from vagentrl.rollout.loader import MinibatchLoader, NoMinibatches
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.report import episode_report
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import RolloutBatch, Scores, Trajectory, Turn

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule

log = logging.getLogger(__name__)

TRAIN = "train"
"""Name of the environment that is trained on; others are named in `val_envs`."""


@dataclass
class _Collection:
    """What was played for an iteration, what of it is learned from, and how it went."""

    trajectories: list[Trajectory]
    kept: list[Trajectory]
    report: dict[str, float]


class RolloutDataModule(LightningDataModule):
    """Plays episodes with the current policy and turns them into minibatches.

    Args:
        env: Environment to train on, and to evaluate on under held-out seeds.
        engine: Samples the replies.
        sampling: How replies are sampled in training.
        context: What the model sees of the past when it replies.
        groups: Initial states in an iteration (P).
        group_size: Episodes from each of them (N).
        turns: Play this many turns in each of ``groups * group_size`` environments instead of whole
            episodes; their episodes go on from batch to batch (Verlog's ``e_len``).
        filter: Which groups are worth a gradient.
        minibatch_size: Rows in one optimizer step.
        micro_batch_size: Rows in one forward and backward pass; changes memory and speed only.
        passes: Passes over a collected batch (k; 1 is fully online).
        val_envs: More environments to evaluate on, by name.
        val_episodes: Held-out episodes of each environment in an evaluation.
        val_sampling: How replies are sampled in evaluations; None: as in training at T = 0.5.
        workers: Run environments in threads, or each in a process of its own.
        max_workers: Episodes that are played at once.
        lockstep: Play a turn of every episode before the next turn of any (for comparison: slower,
            and the same episodes).
        timeout_s: Seconds that an environment may take for one reset or step.
        staleness: 1 collects the next iteration's episodes while the actor learns from this one's,
            so that they come from weights that are one iteration old; 0 takes turns and is exactly
            on-policy.
        context_length: Tokens of context to use; None: all that the model can read.
        seed: Decides every episode and the order of minibatches, together with the iteration.
    """

    def __init__(
        self,
        env: Callable[[], Environment],
        engine: Engine | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
        context: Context = FullHistory(),  # noqa: B008 (frozen)
        groups: int = 16,
        group_size: int = 8,
        turns: int | None = None,
        filter: GroupFilter = KeepAll(),  # noqa: B008 (frozen)
        minibatch_size: int = 32,
        micro_batch_size: int = 8,
        passes: int = 1,
        val_envs: dict[str, Callable[[], Environment]] | None = None,
        val_episodes: int = 256,
        val_sampling: Sampling | None = None,
        workers: Literal["thread", "process"] = "thread",
        max_workers: int = 512,
        lockstep: bool = False,
        timeout_s: float = 60.0,
        staleness: Literal[0, 1] = 0,
        context_length: int | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__()
        counts = {
            "groups": groups,
            "group_size": group_size,
            "minibatch_size": minibatch_size,
            "micro_batch_size": micro_batch_size,
            "passes": passes,
            "val_episodes": val_episodes,
            "turns": 1 if turns is None else turns,
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"data.{name} is {count}; it must be at least 1")
        if TRAIN in (val_envs or {}):
            raise ConfigError(
                f"data.val_envs holds a {TRAIN!r}, which is what data.env is called; it is "
                "evaluated anyway: give another environment another name"
            )
        if sampling.temperature == 0:
            raise ConfigError(
                "data.sampling.temperature is 0: greedy replies have no log-probs to learn from; "
                "give a temperature above 0 (1.0 explores most)"
            )
        engine = engine if engine is not None else TransformersEngine()
        if staleness and turns is not None:
            raise ConfigError(
                f"data.staleness is {staleness} and data.turns {turns}: environments that go on "
                "from batch to batch cannot be resumed exactly when the next batch is played "
                "ahead; leave out one of the two"
            )
        if staleness and not engine.samples_apart:
            raise ConfigError(
                f"data.staleness is {staleness} and data.engine is {type(engine).__name__}, which "
                "samples from the very weights that learn; set its own_copy, or take "
                "vagentrl.engines.VLLMEngine"
            )
        if not isinstance(filter, KeepAll):
            name = type(filter).__name__
            if turns is not None:
                raise ConfigError(
                    f"data.turns is {turns} and data.filter is {name}, which compares whole "
                    "episodes; leave out one of the two"
                )
            if group_size == 1:
                raise ConfigError(
                    f"data.group_size is 1 and data.filter is {name}: the members of a group of "
                    "one never differ, so nothing would be kept; give 2 or more"
                )
        self.environments = {TRAIN: env, **(val_envs or {})}
        self.engine = engine
        self.sampling = sampling
        self.context = context
        self.groups = groups
        self.group_size = group_size
        self.turns = turns
        self.filter = filter
        self.minibatch_size = minibatch_size
        self.micro_batch_size = micro_batch_size
        self.passes = passes
        self.val_episodes = val_episodes
        self.val_sampling = val_sampling or replace(sampling, temperature=0.5)
        self.worker_kind: Literal["thread", "process"] = workers
        self.max_workers = max_workers
        self.lockstep = lockstep
        self.timeout_s = timeout_s
        self.staleness = staleness
        self.wanted_context = context_length
        self.seed = seed
        self.report: dict[str, float] = {}
        """What is known of the current iteration's collection; logged when its update starts."""
        self.trajectories: list[Trajectory] = []
        """The episodes of the current iteration."""
        self.evaluated: dict[str, list[Trajectory]] = {}
        """The episodes of the last evaluation, by environment."""
        self._ahead: Future[_Collection] | None = None
        self._background = ThreadPoolExecutor(1, "collect")
        self._loader: tuple[int, MinibatchLoader | NoMinibatches] | None = None
        self._warmup: tuple[RolloutBatch, Scores] | None = None
        lanes = 0 if turns is None else groups * group_size
        self._lanes = [Lane(partial(self._lane_episode, lane)) for lane in range(lanes)]

    def setup(self, stage: str) -> None:
        if hasattr(self, "renderer"):
            return
        self._check_estimator(self._agent.advantage)
        self._check_importance(self._agent.policy_loss)
        model = self._agent.policy_name
        can_read = context_length(load_config(model))
        context_room = min(self.wanted_context or can_read, can_read)
        self.renderer = Renderer.from_pretrained(checkpoint_path(model))
        self.renderer.self_test()
        self.engine.prepare(self.renderer.vocabulary(context_room))
        if self.worker_kind == "thread":  # wrong settings show here, not in every episode
            for name, factory in self.environments.items():
                environment = factory()
                self._check_replays(name, environment)
                environment.close()
        pools = {
            name: WorkerPool(
                factory,
                name,
                kind=self.worker_kind,
                size=self.max_workers,
                timeout_s=self.timeout_s,
            )
            for name, factory in self.environments.items()
        }
        self.collector = Collector(
            self.engine, self.renderer, pools, context_room, self.context, self.lockstep
        )

    def teardown(self, stage: str) -> None:
        if self._ahead is not None:
            wait([self._ahead])
        for lane in self._lanes:
            lane.close(self.collector)
        for pool in self.collector.pools.values():
            pool.close()

    @property
    def _agent(self) -> AgentModule:
        return self.trainer.lightning_module  # pyright: ignore

    # -------------------------------------------------------------------------------- training

    def train_dataloader(self) -> MinibatchLoader | NoMinibatches:
        """Collect an iteration's episodes with the current policy, and score them."""
        agent = self._agent
        if self._loader is None or self._loader[0] != agent.iteration:  # a resume asks twice
            self._loader = (agent.iteration, self._iterate(agent))
        loader = self._loader[1]
        self.trainer.accumulate_grad_batches = loader.accumulate  # pyright: ignore
        return loader

    def _iterate(self, agent: AgentModule) -> MinibatchLoader | NoMinibatches:
        if agent.actor_is_training:
            self._warmup = None
        if self._warmup is None:
            collection = self._next_collection(agent)
            self.trajectories, self.report = collection.trajectories, collection.report
            kept = collection.kept
            started = time.perf_counter()
            if not kept:
                log.warning(
                    "iteration %d: %s kept none of the groups; nothing is learned from it",
                    agent.iteration,
                    type(self.filter).__name__,
                )
                return NoMinibatches()
            collected = collate(kept, self.renderer, temperature=self.sampling.temperature)
            collected, earlier = collected.to(agent.device), None
        else:  # what was collected for all rounds of a warm-up
            started, self.report = time.perf_counter(), {}
            collected, earlier = self._warmup
        rollout, scores, credit = agent.assess(collected, earlier)
        if not agent.actor_is_training:
            self._warmup = (collected, scores)
        if self.filter.rescale and agent.actor_is_training:
            share = self.report["rollout/kept_groups"]
            credit = replace(credit, advantages=credit.advantages * share)
        self.report["time/score"] = time.perf_counter() - started
        return MinibatchLoader(
            rollout,
            scores,
            credit,
            agent.aggregation,
            minibatch_size=self.minibatch_size,
            micro_batch_size=self.micro_batch_size,
            passes=self.passes,
            seed=_mix(self.seed, agent.iteration, 1),
            part=1.0 if agent.actor_is_training else agent.warmup.part,
        )

    def _next_collection(self, agent: AgentModule) -> _Collection:
        """This iteration's episodes; if the next ones may be stale, they are begun."""
        if self._ahead is None:
            sync = self._sync(agent)
            collection = self._collect(agent, agent.iteration)
            collection.report["time/sync"] = sync
        else:
            started = time.perf_counter()
            collection, self._ahead = self._ahead.result(), None
            collection.report["time/wait"] = time.perf_counter() - started
        versions = [trajectory.policy_version for trajectory in collection.trajectories]
        staleness = agent.iteration - sum(versions) / len(versions)
        collection.report["rollout/staleness"] = staleness if agent.actor_is_training else 0.0
        more = agent.iteration + 1 < (self.trainer.max_epochs or 0)  # pyright: ignore
        if self.staleness and more and agent.actor_is_training:
            collection.report["time/sync"] = self._sync(agent)
            self._ahead = self._background.submit(self._collect, agent, agent.iteration + 1)
        else:
            self.engine.rest()
        return collection

    def _collect(self, agent: AgentModule, iteration: int) -> _Collection:
        """Play an iteration's episodes."""
        engine = self.engine
        tokens, busy, started = engine.sampled_tokens, engine.busy_s, time.perf_counter()
        batches = 1
        if not agent.actor_is_training:  # the same for every round, also for one that is resumed
            iteration, batches = 0, agent.warmup.batches
        wanted = batches * self.groups
        everything: list[Trajectory] = []
        kept: list[list[Trajectory]] = []
        spreads: list[float] = []
        for round in range(self.filter.rounds):
            if self.turns is None:
                episodes = self._training_episodes(iteration, round * wanted, wanted)
                play = partial(self.collector.collect, episodes)
            else:
                turns = batches * self.turns
                play = partial(
                    self.collector.collect_turns, self._lanes, turns, iteration=iteration
                )
            trajectories = self._play(agent, play, self.sampling)
            played = [t for t in trajectories if t.error is None]
            for behaviour in agent.behaviours():
                played = behaviour.on_trajectories(agent, played)
            everything += [t for t in trajectories if t.error is not None] + played
            learnable = [t for t in played if t.error is None]
            groups, round_spreads = select_groups(learnable, self.filter)
            kept += groups
            spreads += round_spreads
            if len(kept) >= wanted:
                break
        if self.filter.rounds > 1:
            kept = kept[:wanted]
        wall, busy = time.perf_counter() - started, engine.busy_s - busy
        report = episode_report(everything, "rollout/") | {
            "time/generate": busy,
            "time/environment": wall - busy,
            "rollout/sampled_tokens": float(engine.sampled_tokens - tokens),
            "rollout/tokens_per_s": (engine.sampled_tokens - tokens) / wall,
            "rollout/kept_groups": len(kept) / max(len(spreads), 1),
            "rollout/group_std": sum(spreads) / max(len(spreads), 1),
        }
        for behaviour in agent.behaviours():
            behaviour.on_report(agent, report)
        return _Collection(everything, [member for group in kept for member in group], report)

    def _training_episodes(self, iteration: int, first: int, count: int) -> list[Episode]:
        return [
            Episode(
                TRAIN,
                seed=train_seed(_mix(self.seed, iteration, 2, group)),
                group_id=group,
                private_seed=_mix(self.seed, iteration, 3, group, member),
                iteration=iteration,
            )
            for group in range(first, first + count)
            for member in range(self.group_size)
        ]

    def _lane_episode(self, lane: int, number: int) -> Episode:
        return Episode(
            TRAIN,
            seed=train_seed(_mix(self.seed, 5, lane, number)),
            group_id=lane,
            private_seed=_mix(self.seed, 6, lane, number),
        )

    def _check_estimator(self, estimator: AdvantageEstimator) -> None:
        name = type(estimator).__name__
        if estimator.needs_groups and self.group_size == 1:
            raise ConfigError(
                f"data.group_size is 1 and model.advantage is {name}, which compares the members "
                "of a group: every advantage would be 0; give 2 or more, or an estimator with a "
                "critic"
            )
        if estimator.needs_episodes and self.turns is not None:
            raise ConfigError(
                f"data.turns is {self.turns} and model.advantage is {name}, which needs episodes "
                "from start to end; choose an estimator with a critic, or leave data.turns out"
            )

    def _check_replays(self, name: str, environment: Environment) -> None:
        if self.turns is not None and name == TRAIN and not environment.replays:
            raise ConfigError(
                f"data.turns is {self.turns}, but {type(environment).__name__} cannot play an "
                "episode again, so a run could not be resumed; for hints from an endpoint set "
                "EndpointFeedback.record, or leave data.turns out"
            )

    def _check_importance(self, loss: PolicyLoss) -> None:
        if self.staleness and loss.importance is None:
            raise ConfigError(
                f"data.staleness is {self.staleness}, so the weights that learn are not those that "
                f"sampled, and model.policy_loss is {type(loss).__name__} without importance "
                "weights; set model.policy_loss.importance to vagentrl.losses.TruncatedImportance"
            )

    def state_dict(self) -> dict[str, Any]:
        # A warm-up that is resumed collects again, with the same actor: from the start, as before.
        if self.turns is None or not self._agent.actor_is_training:
            return {}
        return {"lanes": [lane.state_dict() for lane in self._lanes]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for lane, state in zip(self._lanes, state_dict.get("lanes", []), strict=False):
            lane.load_state_dict(state)

    # ------------------------------------------------------------------------------ evaluation

    def val_dataloader(self) -> DataLoader:
        """Each environment's name with its held-out seeds, the same in every evaluation."""
        seeds = tuple(held_out_seed(index) for index in range(self.val_episodes))
        return DataLoader([(name, seeds) for name in self.environments], batch_size=None)  # pyright: ignore

    test_dataloader = val_dataloader

    def evaluate(
        self, environment: str, seeds: Sequence[int], agent: AgentModule
    ) -> dict[str, float]:
        """Play held-out episodes; the trained environment reports under ``val/``, others under
        ``val/NAME/``."""
        episodes = [
            Episode(environment, seed, number, _mix(seed, 4), agent.iteration)
            for number, seed in enumerate(seeds)
        ]
        play = partial(self.collector.collect, episodes)
        if self._ahead is not None:
            wait([self._ahead])  # what was begun with older weights
        self._sync(agent)
        trajectories = self._play(agent, play, self.val_sampling, training=False)
        self.engine.rest()
        for behaviour in agent.behaviours():
            trajectories = behaviour.on_evaluation(agent, trajectories)
        self.evaluated[environment] = trajectories
        prefix = "val/" if environment == TRAIN else f"val/{environment}/"
        return episode_report(trajectories, prefix)

    # --------------------------------------------------------------------------------- playing

    def _sync(self, agent: AgentModule) -> float:
        """Let the engine sample from the current weights; the seconds that it took."""
        started = time.perf_counter()
        self.engine.update_weights(agent.actor.policy, agent.iteration)
        return time.perf_counter() - started

    def _play(
        self,
        agent: AgentModule,
        play: Callable[[Sampling, OnEnd, OnTurn], list[Trajectory]],
        sampling: Sampling,
        *,
        training: bool = True,
    ) -> list[Trajectory]:
        behaviours = list(agent.behaviours())

        def on_end(trajectory: Trajectory) -> None:
            for behaviour in behaviours:
                behaviour.on_episode_end(agent, trajectory)

        def on_turn(turn: Turn) -> None:
            for behaviour in behaviours:
                behaviour.on_turn_end(agent, turn, training=training)

        trajectories = play(sampling, on_end, on_turn)
        if failed := [t for t in trajectories if t.error is not None]:
            log.warning(
                "%d of %d episodes failed; the first: %s",
                len(failed),
                len(trajectories),
                failed[0].error,
            )
        return trajectories


def _mix(*numbers: int) -> int:
    """A 62-bit seed out of several numbers; the same in every process."""
    words: Any = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return int(words[0] >> 2)
