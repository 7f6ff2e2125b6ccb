"""Collects episodes, and serves them as minibatches: one epoch is one iteration."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from lightning import LightningDataModule
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from vagentrl import ranks
from vagentrl.advantages import AdvantageEstimator
from vagentrl.contexts import Context, FullHistory
from vagentrl.engines import TransformersEngine, VLLMEngine, VLLMServerEngine
from vagentrl.engines.base import Engine, Sampling
from vagentrl.environment import Environment, held_out_seed
from vagentrl.errors import ConfigError
from vagentrl.filters import GroupFilter, KeepAll
from vagentrl.losses import PolicyLoss
from vagentrl.models.load import checkpoint_path, context_length, load_config
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.checks import check_choice, check_kind
from vagentrl.rollout.collate import collate
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.loader import MinibatchLoader, NoMinibatches
from vagentrl.rollout.policy_record import Part, PolicyRecord
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.report import episode_report
from vagentrl.rollout.source import TRAIN, EpisodeSource, mix
from vagentrl.rollout.workers import WorkerPool, check_factory, make, traits
from vagentrl.types import RolloutBatch, Scores, Trajectory

log = logging.getLogger(__name__)


class RolloutDataModule(LightningDataModule):
    """Turns episodes that the current policy plays into minibatches.

    Args:
        env: Environment to train on, and to evaluate on under held-out seeds.
        engine: Samples the replies.
        sampling: How replies are sampled in training.
        context: What the model sees of the past when it replies.
        groups: Initial states in an iteration (P), of all ranks: a multiple of their number.
        group_size: Episodes from each of them (N).
        turns: Play this many turns in each of ``groups * group_size`` environments instead of whole
            episodes; their episodes go on from batch to batch (Verlog's ``e_len``).
        filter: Which groups are worth a gradient.
        minibatch_size: Rows in one optimizer step, of all ranks.
        micro_batch_size: Rows in one forward and backward pass of a rank; changes memory and speed
            only.
        passes: Passes over a collected batch (k; 1 is fully online).
        val_envs: More environments to evaluate on, by name.
        val_episodes: Held-out episodes of each environment in an evaluation.
        val_sampling: How replies are sampled in evaluations; None: as in training at T = 0.5.
        workers: Run environments in threads, or each in a process of its own.
        max_workers: Episodes that are played at once, on each rank.
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
        if TRAIN in (val_envs or {}):
            raise ConfigError(
                f"data.val_envs holds a {TRAIN!r}, which is what data.env is called; it is "
                "evaluated anyway: give another environment another name"
            )
        self.environments = {TRAIN: env, **(val_envs or {})}
        self.engine = engine if engine is not None else TransformersEngine()
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
        check_kind("data.sampling", sampling, Sampling)
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
        self._check_settings()
        self.source = EpisodeSource(self)
        self._policy: str | None = None  # set up for it
        self._loader: tuple[int, MinibatchLoader | NoMinibatches] | None = None
        self._warmup: tuple[RolloutBatch, Scores] | None = None

    def setup(self, stage: str) -> None:
        self._check_agent()
        self._loader = self._warmup = None  # of an earlier run, perhaps of another module
        self.source.forget()
        if hasattr(self, "renderer"):
            return
        if ranks.world_size() > 1:
            self._check_ranks(ranks.world_size())
        self._check_estimator(self._agent.advantage)
        self._check_importance(self._agent.policy_loss)
        self._warn_of_reuse(self._agent.policy_loss)
        model = self._agent.policy_name
        can_read = context_length(load_config(model))
        context_room = min(self.wanted_context or can_read, can_read)
        self.renderer = Renderer.from_pretrained(checkpoint_path(model))
        self.renderer.self_test()
        self.engine.prepare(self.renderer.vocabulary(context_room))
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
        for name, pool in pools.items():
            replays, waits_s = self._traits(name, pool)
            self._check_replays(name, replays)
            pool.timeout_s += waits_s
        self.collector = Collector(
            self.engine, self.renderer, pools, context_room, self.context, self.lockstep
        )

    def teardown(self, stage: str) -> None:
        self.source.close()
        self.trainer.accumulate_grad_batches = 1  # pyright: ignore
        for pool in self.collector.pools.values():
            pool.close()

    def on_exception(self, exception: BaseException) -> None:
        self.trainer.accumulate_grad_batches = 1  # pyright: ignore

    @property
    def _agent(self) -> AgentModule:
        return self.trainer.lightning_module  # pyright: ignore

    # -------------------------------------------------------------------------------- training

    def train_dataloader(self) -> MinibatchLoader | NoMinibatches:
        """Collect an iteration's episodes with the current policy, and score them."""
        agent = self._agent
        if agent.iteration >= agent.total_iterations:
            log.warning(
                "%d of %d iterations are done, so nothing is played and nothing learned; raise "
                "trainer.max_epochs (in Python, trainer.fit_loop.max_epochs)",
                agent.iteration,
                agent.total_iterations,
            )
            return NoMinibatches()
        if self._loader is None or self._loader[0] != agent.iteration:  # a resume asks twice
            self._loader = (agent.iteration, self._iterate(agent))
        loader = self._loader[1]
        self.trainer.accumulate_grad_batches = loader.accumulate  # pyright: ignore
        return loader

    def _iterate(self, agent: AgentModule) -> MinibatchLoader | NoMinibatches:
        if agent.actor_is_training:
            self._warmup = None
        if self._warmup is None:
            collection = self.source.next(agent)
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
            seed=mix(self.seed, agent.iteration, 1),
            part=1.0 if agent.actor_is_training else agent.warmup.part,
            ranks=ranks.world_size(),
            rank=ranks.rank(),
        )

    def state_dict(self) -> dict[str, Any]:
        # A warm-up that is resumed collects again, with the same actor: from the start, as before.
        if self.turns is None or not self._agent.actor_is_training:
            return {}
        return self.source.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.source.load_state_dict(state_dict)

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
        trajectories, report = self.source.evaluate(agent, environment, seeds)
        self.evaluated[environment] = trajectories
        prefix = "val/" if environment == TRAIN else f"val/{environment}/"
        own = {prefix + name: value for name, value in report.items()}
        return episode_report(trajectories, prefix) | own

    def policy_record(self) -> PolicyRecord:
        """What a checkpoint says of the policy, for `vagentrl.load_policy`."""
        agent, collector = self._agent, self.collector
        system_prompt, reply_format = collector.asked.get(TRAIN, (None, None))
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

    def _check_settings(self) -> None:
        """Raise on settings that cannot work, alone or together."""
        for name, factory in self.environments.items():
            key = "data.env" if name == TRAIN else f"data.val_envs[{name!r}]"
            check_factory(factory, key)
        for name, part, kind in (
            ("engine", self.engine, Engine),
            ("val_sampling", self.val_sampling, Sampling),
            ("context", self.context, Context),
            ("filter", self.filter, GroupFilter),
        ):
            check_kind(f"data.{name}", part, kind)
        check_choice("data.workers", self.worker_kind, ("thread", "process"))
        check_choice("data.staleness", self.staleness, (0, 1))
        counts = {
            "groups": self.groups,
            "group_size": self.group_size,
            "minibatch_size": self.minibatch_size,
            "micro_batch_size": self.micro_batch_size,
            "passes": self.passes,
            "val_episodes": self.val_episodes,
            "turns": 1 if self.turns is None else self.turns,
        }
        for name, count in counts.items():
            check_kind(f"data.{name}", count, int)
            if count < 1:
                raise ConfigError(f"data.{name} is {count}; it must be at least 1")
        if self.sampling.temperature == 0:
            raise ConfigError(
                "data.sampling.temperature is 0: greedy replies have no log-probs to learn from; "
                "give a temperature above 0 (1.0 explores most)"
            )
        if self.staleness:
            self._check_staleness()
        if not isinstance(self.filter, KeepAll):
            self._check_filter()

    def _check_agent(self) -> None:
        """Refuse modules that cannot learn from these episodes."""
        module = self.trainer.lightning_module  # pyright: ignore
        if not isinstance(module, AgentModule):
            raise ConfigError(
                f"RolloutDataModule plays episodes for an AgentModule, and the trainer was given a "
                f"{type(module).__name__}: call trainer.fit(AgentModule(...), data)"
            )
        policy = f"{module.policy_name} (adapter: {module.lora})"
        if self._policy not in (None, policy):
            raise ConfigError(
                f"this RolloutDataModule has the engine and the tokenizer of {self._policy}, and "
                f"the module's policy is {policy}; make another RolloutDataModule for it, with an "
                "engine of its own"
            )
        self._policy = policy

    def _check_ranks(self, count: int) -> None:
        strategy = self.trainer.strategy  # pyright: ignore
        if not isinstance(strategy, DDPStrategy):
            raise ConfigError(
                f"trainer.strategy is {type(strategy).__name__} and there are {count} ranks; only "
                "DDP and DeepSpeed are known to learn right with several: set trainer.strategy to "
                "ddp or deepspeed_stage_2, or trainer.devices and trainer.num_nodes to 1"
            )
        if self.groups % count:
            raise ConfigError(
                f"data.groups is {self.groups}, which {count} ranks cannot share evenly; give a "
                f"multiple of {count}"
            )
        if self.staleness:
            raise ConfigError(
                f"data.staleness is {self.staleness} and there are {count} ranks, which talk to "
                "each other about what they play, and would do so while they learn; set it to 0, "
                "or trainer.devices and trainer.num_nodes to 1"
            )
        if isinstance(self.engine, VLLMServerEngine):
            raise ConfigError(
                f"data.engine is VLLMServerEngine and there are {count} ranks, each of which would "
                "start a server or change the weights of one that others sample from; set "
                "trainer.devices and trainer.num_nodes to 1, or take another engine"
            )
        if isinstance(self.engine, VLLMEngine) and self.engine.options["tensor_parallel_size"] > 1:
            raise ConfigError(
                f"data.engine is VLLMEngine and there are {count} ranks, each of which would share "
                "its weights among the first devices; set tensor_parallel_size to 1, or "
                "trainer.devices and trainer.num_nodes"
            )

    def _check_staleness(self) -> None:
        if self.turns is not None:
            raise ConfigError(
                f"data.staleness is {self.staleness} and data.turns {self.turns}: environments "
                "that go on from batch to batch cannot be resumed exactly when the next batch is "
                "played ahead; leave out one of the two"
            )
        if not self.engine.samples_apart:
            raise ConfigError(
                f"data.staleness is {self.staleness} and data.engine is "
                f"{type(self.engine).__name__}, which samples from the very weights that learn; "
                "set its own_copy, or take vagentrl.engines.ReplicatedEngine or VLLMEngine"
            )

    def _check_filter(self) -> None:
        name = type(self.filter).__name__
        if self.turns is not None:
            raise ConfigError(
                f"data.turns is {self.turns} and data.filter is {name}, which compares whole "
                "episodes; leave out one of the two"
            )
        if self.group_size == 1:
            raise ConfigError(
                f"data.group_size is 1 and data.filter is {name}: the members of a group of one "
                "never differ, so nothing would be kept; give 2 or more"
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

    def _traits(self, name: str, pool: WorkerPool) -> tuple[bool, float]:
        if self.worker_kind == "process":
            return pool.ask(traits)
        environment = make(self.environments[name], name)  # so that wrong settings show once
        told = traits(environment)
        environment.close()
        return told

    def _check_replays(self, name: str, replays: bool) -> None:
        if self.turns is not None and name == TRAIN and not replays:
            raise ConfigError(
                f"data.turns is {self.turns}, but the environment cannot play an episode "
                "again, so a run could not be resumed; for hints from an endpoint set "
                "ChatHintModel.record, or leave data.turns out"
            )

    def _check_importance(self, loss: PolicyLoss) -> None:
        if self.staleness and loss.importance is None:
            raise ConfigError(
                f"data.staleness is {self.staleness}, so the weights that learn are not those that "
                f"sampled, and model.policy_loss is {type(loss).__name__} without importance "
                "weights; set model.policy_loss.importance to vagentrl.losses.TruncatedImportance"
            )

    def _warn_of_reuse(self, loss: PolicyLoss) -> None:
        rows = self.groups * self.group_size  # at least
        updates = self.passes * max(1, round(rows / self.minibatch_size))
        if updates > 1 and not loss.reusable:
            log.warning(
                "model.policy_loss is %s, which is right for one update a batch, and data.passes "
                "%d with data.minibatch_size %d makes about %d: give passes 1 and a minibatch_size "
                "of %d or more, or a loss with a ratio",
                type(loss).__name__,
                self.passes,
                self.minibatch_size,
                updates,
                rows,
            )
