"""Collects episodes, and serves them as minibatches: one epoch is one iteration."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from vagentrl.engine import Engine, Sampling
from vagentrl.engines import TransformersEngine
from vagentrl.environment import Environment, held_out_seed, train_seed
from vagentrl.errors import ConfigError
from vagentrl.models.load import checkpoint_path, context_length, load_config
from vagentrl.rollout.collate import collate
from vagentrl.rollout.collector import Collector, Episode
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.report import episode_report
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Trajectory

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule

log = logging.getLogger(__name__)

TRAIN = "train"
"""Name of the environment that is trained on; others are named in `val_envs`."""


class RolloutDataModule(LightningDataModule):
    """Plays episodes with the current policy and turns them into minibatches.

    Args:
        env: Environment to train on, and to evaluate on under held-out seeds.
        engine: Samples the replies.
        sampling: How replies are sampled in training.
        groups: Initial states in an iteration (P).
        group_size: Episodes from each of them (N).
        minibatch_size: Rows in one optimizer step.
        micro_batch_size: Rows in one forward and backward pass; changes memory and speed only.
        passes: Passes over a collected batch (k; 1 is fully online).
        val_envs: More environments to evaluate on, by name.
        val_episodes: Held-out episodes of each environment in an evaluation.
        val_sampling: How replies are sampled in evaluations; None: as in training at T = 0.5.
        workers: Run environments in threads, or each in a process of its own.
        max_workers: Episodes that are played at once.
        timeout_s: Seconds that an environment may take for one reset or step.
        context_length: Tokens of context to use; None: all that the model can read.
        seed: Decides every episode and the order of minibatches, together with the iteration.
    """

    def __init__(
        self,
        env: Callable[[], Environment],
        engine: Engine | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
        groups: int = 16,
        group_size: int = 8,
        minibatch_size: int = 32,
        micro_batch_size: int = 8,
        passes: int = 1,
        val_envs: dict[str, Callable[[], Environment]] | None = None,
        val_episodes: int = 256,
        val_sampling: Sampling | None = None,
        workers: Literal["thread", "process"] = "thread",
        max_workers: int = 512,
        timeout_s: float = 60.0,
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
        self.environments = {TRAIN: env, **(val_envs or {})}
        self.engine = engine if engine is not None else TransformersEngine()
        self.sampling = sampling
        self.groups = groups
        self.group_size = group_size
        self.minibatch_size = minibatch_size
        self.micro_batch_size = micro_batch_size
        self.passes = passes
        self.val_episodes = val_episodes
        self.val_sampling = val_sampling or replace(sampling, temperature=0.5)
        self.worker_kind: Literal["thread", "process"] = workers
        self.max_workers = max_workers
        self.timeout_s = timeout_s
        self.wanted_context = context_length
        self.seed = seed
        self.report: dict[str, float] = {}
        """What is known of the current iteration's collection; logged when its update starts."""
        self.trajectories: list[Trajectory] = []
        """The episodes of the current iteration."""
        self.evaluated: dict[str, list[Trajectory]] = {}
        """The episodes of the last evaluation, by environment."""
        self._loader: tuple[int, MinibatchLoader] | None = None

    def setup(self, stage: str) -> None:
        if hasattr(self, "renderer"):
            return
        model = self._agent.policy_name
        can_read = context_length(load_config(model))
        self.context = min(self.wanted_context or can_read, can_read)
        self.renderer = Renderer.from_pretrained(checkpoint_path(model))
        self.renderer.self_test()
        self.engine.prepare(self.renderer.vocabulary(self.context))
        if self.worker_kind == "thread":  # wrong settings show here, not in every episode
            for factory in self.environments.values():
                factory().close()
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
        self.collector = Collector(self.engine, self.renderer, pools, self.context)

    def teardown(self, stage: str) -> None:
        for pool in self.collector.pools.values():
            pool.close()

    @property
    def _agent(self) -> AgentModule:
        return self.trainer.lightning_module  # pyright: ignore

    # -------------------------------------------------------------------------------- training

    def train_dataloader(self) -> MinibatchLoader:
        """Collect an iteration's episodes with the current policy, and score them."""
        agent = self._agent
        if self._loader is None or self._loader[0] != agent.iteration:  # a resume asks twice
            self._loader = (agent.iteration, self._iterate(agent))
        loader = self._loader[1]
        self.trainer.accumulate_grad_batches = loader.accumulate  # pyright: ignore
        return loader

    def _iterate(self, agent: AgentModule) -> MinibatchLoader:
        iteration = agent.iteration
        trajectories = self._play(agent, self._training_episodes(iteration), self.sampling)
        self.trajectories = trajectories
        self.report = episode_report(trajectories, "rollout/") | self._timings
        started = time.perf_counter()
        played = [t for t in trajectories if t.error is None]
        for behaviour in agent.behaviours():
            played = behaviour.on_trajectories(agent, played)
        rollout = collate(
            played,
            self.renderer,
            temperature=self.sampling.temperature,
            context_length=self.context,
        )
        rollout, scores, credit = agent.assess(rollout.to(agent.device))
        self.report["time/score"] = time.perf_counter() - started
        return MinibatchLoader(
            rollout,
            scores,
            credit,
            agent.aggregation,
            minibatch_size=self.minibatch_size,
            micro_batch_size=self.micro_batch_size,
            passes=self.passes,
            seed=_mix(self.seed, iteration, 1),
        )

    def _training_episodes(self, iteration: int) -> list[Episode]:
        return [
            Episode(
                TRAIN,
                seed=train_seed(_mix(self.seed, iteration, 2, group)),
                group_id=group,
                private_seed=_mix(self.seed, iteration, 3, group, member),
            )
            for group in range(self.groups)
            for member in range(self.group_size)
        ]

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
            Episode(environment, seed, group_id=number, private_seed=_mix(seed, 4))
            for number, seed in enumerate(seeds)
        ]
        trajectories = self._play(agent, episodes, self.val_sampling)
        self.evaluated[environment] = trajectories
        prefix = "val/" if environment == TRAIN else f"val/{environment}/"
        return episode_report(trajectories, prefix)

    # --------------------------------------------------------------------------------- playing

    def _play(
        self, agent: AgentModule, episodes: Sequence[Episode], sampling: Sampling
    ) -> list[Trajectory]:
        engine, behaviours = self.engine, list(agent.behaviours())
        engine.update_weights(agent.actor.policy, agent.iteration)
        tokens, busy, started = engine.sampled_tokens, engine.busy_s, time.perf_counter()

        def on_end(trajectory: Trajectory) -> None:
            for behaviour in behaviours:
                behaviour.on_episode_end(agent, trajectory)

        trajectories = self.collector.collect(episodes, sampling, on_end)
        wall, busy = time.perf_counter() - started, engine.busy_s - busy
        self._timings = {
            "time/generate": busy,
            "time/environment": wall - busy,
            "rollout/sampled_tokens": float(engine.sampled_tokens - tokens),
            "rollout/tokens_per_s": (engine.sampled_tokens - tokens) / wall,
        }
        if failed := [t for t in trajectories if t.error is not None]:
            log.warning(
                "%d of %d episodes failed; the first: %s",
                len(failed),
                len(episodes),
                failed[0].error,
            )
        return trajectories


def _mix(*numbers: int) -> int:
    """A 62-bit seed out of several numbers; the same in every process."""
    words: Any = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return int(words[0] >> 2)
