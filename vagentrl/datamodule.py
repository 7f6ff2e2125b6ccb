"""Collects episodes and serves them as minibatches; one epoch of the trainer is one iteration."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch.utils.data import DataLoader

from vagentrl import ranks
from vagentrl.contexts import Context, FullHistory
from vagentrl.engines import TransformersEngine
from vagentrl.engines.base import Engine, Sampling
from vagentrl.environment import Environment, Split
from vagentrl.errors import ConfigError
from vagentrl.filters import GroupFilter, KeepAll
from vagentrl.mixture import mixture_of
from vagentrl.models.load import checkpoint_path, context_length, load_config
from vagentrl.modules.agent import AgentModule, agent_of
from vagentrl.modules.checks import check_kind
from vagentrl.modules.data_checks import (
    check_estimator,
    check_names,
    check_policy_loss,
    check_ranks,
    check_replays,
    check_settings,
)
from vagentrl.modules.rollouts import Rollouts, attached
from vagentrl.modules.trainer_checks import check_trainer, computes_in
from vagentrl.rollout.collate import collate
from vagentrl.rollout.collection import CollectionPlan
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.draws import Draws, World
from vagentrl.rollout.held_out import held_out_seeds
from vagentrl.rollout.loader import MinibatchLoader, NoMinibatches
from vagentrl.rollout.policy_record import Part, PolicyRecord
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.report import episode_report
from vagentrl.rollout.seeds import mix
from vagentrl.rollout.source import TRAIN, EpisodeSource
from vagentrl.rollout.workers import Traits, WorkerPool, make, probed_traits, traits
from vagentrl.types import AtLimit, RolloutBatch, Scores, Trajectory

log = logging.getLogger(__name__)

ROWS_IN_A_PASS = 8
"""`micro_batch_size`, where no budget of tokens is given either."""


class RolloutDataModule(Rollouts):
    """Plays episodes with the current policy and serves them as minibatches.

    Args:
        env: Environment to train on, and to evaluate on with validation and test seeds. The groups
            of a `vagentrl.Mixture` are divided among its environments.
        engine: Samples the replies.
        sampling: How replies are sampled in training.
        context: Which earlier turns the model sees when it replies.
        groups: Initial states in an iteration (P), over all ranks; a multiple of the number of
            ranks.
        group_size: Episodes from each initial state (N).
        turns: Instead of whole episodes, play this many turns in each of ``groups * group_size``
            persistent environments, whose episodes continue in the next batch (Verlog's ``e_len``).
        at_limit: What it means when the environment's limit on turns or actions, or a full context,
            truncates an episode. ``end``: the task is over, and the value after it is 0.
            ``bootstrap``: the episode was cut, and estimators use the critic's value after it. An
            episode that is cut because its batch ends (``turns``) is always bootstrapped.
        filter: Chooses the groups to learn from.
        minibatch_size: Rows in one optimizer step, over all ranks.
        micro_batch_size: Rows in one forward and backward pass of a rank; changes memory and speed
            only. None: 8, unless `micro_batch_tokens` is given.
        micro_batch_tokens: Instead of a number of rows, the most tokens in one forward and backward
            pass of a rank, padding included; a longer row is read alone. Rows are then divided
            among ranks by their tokens. Changes memory and speed only.
        passes: Passes over a collected batch (k; 1 is fully online).
        val_envs: Additional environments to evaluate on, by name.
        val_episodes: Episodes of each environment in a validation, and in a test. They start from
            different states, as far as the environment reports its initial states and has enough.
        val_sampling: How replies are sampled in evaluations; None: as in training, but at
            temperature 0.5.
        workers: Run environments in threads, or each in a process of its own.
        max_workers: Maximum number of episodes at the same time, on each rank.
        lockstep: Play all episodes turn by turn: one turn of each before the next turn of any. The
            episodes are the same but take longer; this serves comparisons of speed.
        timeout_s: Seconds that an environment may take for one reset or step.
        worker_memory_gb: GiB of memory that an environment's process may take; None for no limit.
        staleness: n plays the episodes of the next n iterations while the actor learns from the
            current ones, on any number of ranks; new weights are used from the next reply on, and
            are n iterations old at most when the actor learns from a turn that they sampled. 0
            collects and learns in turn, which is exactly on-policy.
        context_length: Length of the context in tokens; None uses the model's full length.
        seed: Determines all episodes and the order of minibatches, together with the iteration.
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
        at_limit: AtLimit = "end",
        filter: GroupFilter = KeepAll(),  # noqa: B008 (frozen)
        minibatch_size: int = 32,
        micro_batch_size: int | None = None,
        micro_batch_tokens: int | None = None,
        passes: int = 1,
        val_envs: dict[str, Callable[[], Environment]] | None = None,
        val_episodes: int = 256,
        val_sampling: Sampling | None = None,
        workers: Literal["thread", "process"] = "thread",
        max_workers: int = 512,
        lockstep: bool = False,
        timeout_s: float = 60.0,
        worker_memory_gb: float | None = None,
        staleness: int = 0,
        context_length: int | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.mixture = mixture_of(env)
        trained = {TRAIN: env} if self.mixture is None else self.mixture.worlds
        check_names(trained, val_envs or {})
        self.worlds = tuple(trained)
        self.environments = {**trained, **(val_envs or {})}
        self.engine = engine if engine is not None else TransformersEngine()
        self.sampling = sampling
        self.context = context
        self.groups = groups
        self.group_size = group_size
        self.turns = turns
        self.at_limit = at_limit
        self.filter = filter
        self.minibatch_size = minibatch_size
        rows = ROWS_IN_A_PASS if micro_batch_tokens is None else None
        self.micro_batch_size = rows if micro_batch_size is None else micro_batch_size
        self.micro_batch_tokens = micro_batch_tokens
        self.passes = passes
        self.val_episodes = val_episodes
        check_kind("data.sampling", sampling, Sampling)
        self.val_sampling = val_sampling or sampling.in_evaluations()
        self.worker_kind: Literal["thread", "process"] = workers
        self.max_workers = max_workers
        self.lockstep = lockstep
        self.timeout_s = timeout_s
        self.worker_memory_gb = worker_memory_gb
        self.staleness = staleness
        self.wanted_context = context_length
        self.seed = seed
        self.report = {}
        self.trajectories = []
        self.learned = []
        self.assessed = None
        self.evaluated = {}
        check_settings(self)
        self._seeds: dict[tuple[Split, str], tuple[int, ...]] = {}
        self._policy: str | None = None  # the policy that engine and tokenizer belong to
        self._loader: tuple[int, MinibatchLoader | NoMinibatches] | None = None
        self._warmup: tuple[RolloutBatch, Scores] | None = None

    def setup(self, stage: str) -> None:
        trainer = attached(self)
        check_trainer(trainer, stage)
        agent = agent_of(trainer.lightning_module)
        self._check_policy(agent)
        self._loader = self._warmup = self.assessed = None  # drop the batches of an earlier run
        if hasattr(self, "renderer"):
            self.source.forget()
            return
        if ranks.world_size() > 1:
            check_ranks(self, trainer.strategy, ranks.world_size())
        check_estimator(self, agent.advantage)
        check_policy_loss(self, agent.policy_loss)
        model = agent.policy_name
        can_read = context_length(load_config(model))
        context_room = min(self.wanted_context or can_read, can_read)
        self.renderer = Renderer.from_pretrained(checkpoint_path(model))
        self.renderer.self_test()
        self.engine.dtype = computes_in(trainer)
        self.engine.prepare(self.renderer.vocabulary(context_room))
        pools = {
            name: WorkerPool(
                factory,
                name,
                kind=self.worker_kind,
                size=self.max_workers,
                timeout_s=self.timeout_s,
                memory_gb=self.worker_memory_gb,
            )
            for name, factory in self.environments.items()
        }
        starts: dict[str, int | None] = {}
        for name, pool in pools.items():
            found = self._traits(name, pool, probed_traits if stage == "fit" else traits)
            check_replays(self, name, found.replays, agent.advantage)
            pool.timeout_s += found.waits_s
            starts[name] = found.starts
        self.collector = Collector(
            self.engine,
            self.renderer,
            pools,
            context_room,
            self.context,
            self.lockstep,
            background=self.staleness > 0,
        )
        plan = CollectionPlan(
            groups=self.groups,
            group_size=self.group_size,
            turns=self.turns,
            filter=self.filter,
            sampling=self.sampling,
            staleness=self.staleness,
            seed=self.seed,
            continuations=agent.advantage.continuations,
        )
        self.source = EpisodeSource(self.collector, plan, self._draws(starts))

    def teardown(self, stage: str) -> None:
        self.source.close()
        attached(self).accumulate_grad_batches = 1
        for pool in self.collector.pools.values():
            pool.close()

    def on_exception(self, exception: BaseException) -> None:
        attached(self).accumulate_grad_batches = 1
        if hasattr(self, "source"):
            self.source.abandon()

    # -------------------------------------------------------------------------------- training

    def train_dataloader(self) -> MinibatchLoader | NoMinibatches:
        """Collect an iteration's episodes with the current policy, score them and assign credit."""
        trainer = attached(self)
        agent = agent_of(trainer.lightning_module)
        if agent.iteration >= agent.total_iterations:
            log.warning(
                "%d of %d iterations are completed, so no episodes are played; to train further, "
                "raise trainer.max_epochs (in Python, trainer.fit_loop.max_epochs)",
                agent.iteration,
                agent.total_iterations,
            )
            return NoMinibatches()
        # A resumed run asks twice for the same iteration.
        if self._loader is None or self._loader[0] != agent.iteration:
            self._loader = (agent.iteration, self._iterate(agent))
        loader = self._loader[1]
        trainer.accumulate_grad_batches = loader.accumulate
        return loader

    def _iterate(self, agent: AgentModule) -> MinibatchLoader | NoMinibatches:
        iteration = agent.current
        if iteration.actor_learns:
            self._warmup = None
        self.assessed = None
        if self._warmup is None:
            kept = self.learned = self._collect(agent)
            started = time.perf_counter()
            if not kept:
                log.warning(
                    "iteration %d: %s kept none of the groups; nothing is learned from it",
                    iteration.number,
                    type(self.filter).__name__,
                )
                return NoMinibatches()
            earlier = None
            collected = collate(
                kept,
                self.renderer,
                temperature=self.sampling.temperature,
                at_limit=self.at_limit,
            )
        else:  # the rounds of a critic warm-up share one batch
            started, self.report = time.perf_counter(), {}
            collected, earlier = self._warmup
        rollout, scores, credit = agent.assess(collected, earlier)
        if not iteration.actor_learns:
            self._warmup = (collected, scores)
        if self.filter.rescale and iteration.actor_learns:
            share = self.report["rollout/kept_groups"]
            credit = replace(credit, advantages=credit.advantages * share)
        self.report["time/score"] = time.perf_counter() - started
        loader = MinibatchLoader(
            rollout,
            scores,
            credit,
            agent.aggregation,
            minibatch_size=self.minibatch_size,
            micro_batch_size=self.micro_batch_size,
            micro_batch_tokens=self.micro_batch_tokens,
            passes=self.passes,
            seed=mix(self.seed, iteration.number, 1),
            part=iteration.part,
            by_prefix=agent.packing,
            ranks=ranks.world_size(),
            rank=ranks.rank(),
        )
        self.assessed = loader.whole
        self.report["train/fillers"] = loader.fillers
        return loader

    def _collect(self, agent: AgentModule) -> list[Trajectory]:
        """Play the iteration's episodes; returns those to learn from."""
        now, end = agent.iteration, agent.total_iterations
        ahead = range(now + 1, min(now + 1 + self.staleness, end))
        upcoming = [agent.warmup.iteration(number) for number in ahead]
        collection = self.source.next(
            agent.current, agent.actor.policy, agent.hooks, upcoming=upcoming
        )
        self.trajectories, self.report = collection.trajectories, collection.report
        return collection.kept

    def state_dict(self) -> dict[str, Any]:
        # Within a warm-up nothing is saved: a resumed run collects the same batch again, with the
        # same actor and from the first episode.
        current = agent_of(attached(self).lightning_module).current
        return self.source.state_dict(current.batch) if current.actor_learns else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.source.load_state_dict(state_dict)

    # ------------------------------------------------------------------------------ evaluation

    def val_dataloader(self) -> DataLoader:
        """Yields the name of each environment with the seeds of its validation episodes."""
        return self._held_out("validation")

    def test_dataloader(self) -> DataLoader:
        """Yields the name of each environment with the seeds of its test episodes."""
        return self._held_out("test")

    def _held_out(self, split: Split) -> DataLoader:
        """Yields environments with their seeds, the same in every evaluation of the run."""
        self.source.wait()  # episodes in the background occupy the workers
        for name, pool in self.collector.pools.items():
            if (split, name) not in self._seeds:
                self._seeds[split, name] = held_out_seeds(pool, split, self.val_episodes)
        evaluations = [(name, self._seeds[split, name]) for name in self.environments]
        return DataLoader(evaluations, batch_size=None)  # pyright: ignore

    def evaluate(
        self, environment: str, seeds: Sequence[int], agent: AgentModule, prefix: str = "val"
    ) -> dict[str, float]:
        """Play evaluation episodes.

        Returns:
            The metrics to log: under ``val/`` (or another prefix) for the training environment,
            under ``val/NAME/`` for others and for each of several. The last of several training
            environments also adds those of all together.
        """
        trajectories, report = self.source.evaluate(
            environment,
            seeds,
            self.val_sampling,
            agent.actor.policy,
            agent.hooks,
            version=agent.iteration,
        )
        self.evaluated[environment] = trajectories
        report["distinct_states"] = float(len({t.seed for t in trajectories if t.error is None}))
        where = f"{prefix}/" if environment == TRAIN else f"{prefix}/{environment}/"
        metrics = episode_report(trajectories, where)
        metrics |= {where + name: value for name, value in report.items()}
        if environment == self.worlds[-1] != TRAIN:
            together = [t for world in self.worlds for t in self.evaluated[world]]
            metrics |= episode_report(together, f"{prefix}/")
        return metrics

    def policy_record(self) -> PolicyRecord:
        """The policy's description for a checkpoint; `vagentrl.load_policy` reads it."""
        agent, collector = agent_of(attached(self).lightning_module), self.collector
        instructions = {collector.instructions.get(world, (None, None)) for world in self.worlds}
        # Several worlds need not have the same prompt, and a record has room for one.
        system_prompt, reply_format = instructions.pop() if len(instructions) == 1 else (None, None)
        return PolicyRecord(
            policy=agent.policy_name,
            dtype=agent.dtype_name,
            lora=agent.lora,
            iteration=agent.iteration,
            context=Part.of(self.context),
            context_length=collector.context_length,
            sampling=self.val_sampling,
            system_prompt=system_prompt,
            reply_format=None if reply_format is None else Part.of(reply_format),
        )

    # ------------------------------------------------------------------------------- settings

    def _check_policy(self, agent: AgentModule) -> None:
        """Refuse an agent whose policy differs from the one of an earlier `setup`."""
        policy = f"{agent.policy_name} (adapter: {agent.lora})"
        if self._policy not in (None, policy):
            raise ConfigError(
                f"this RolloutDataModule has the engine and the tokenizer of {self._policy}, but "
                f"the module's policy is {policy}; make another RolloutDataModule for it, with an "
                "engine of its own"
            )
        self._policy = policy

    def _draws(self, starts: Mapping[str, int | None]) -> Draws:
        mixture = self.mixture
        if mixture is None:
            return Draws([World(TRAIN, starts=starts[TRAIN])], seed=self.seed)
        worlds = [World(name, mixture.weights[name], starts[name]) for name in mixture.worlds]
        return Draws(worlds, mixture.curriculum, self.seed)

    def _traits(self, name: str, pool: WorkerPool, look: Callable[[Environment], Traits]) -> Traits:
        if self.worker_kind == "process":
            return pool.ask(look)
        # Made in this thread, so that wrong settings raise here and not in every worker.
        environment = make(self.environments[name], name)
        found = look(environment)
        environment.close()
        return found
