"""Play episodes: each is its own coroutine, and nobody waits for the slowest."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vagentrl.engine import Engine, GenerationRequest, Sampling
from vagentrl.errors import ConfigError, RolloutError
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import WorkerPool, reset, step
from vagentrl.types import Observation, Reply, Stop, Trajectory, Turn


@dataclass(frozen=True)
class Episode:
    """An episode to play.

    Attributes:
        environment: Name of the environment.
        seed: Seed of its initial state.
        group_id: Episodes of one group share `seed` and nothing else.
        private_seed: Decides everything that members of a group do not share: the randomness of
            transitions and of sampling.
    """

    environment: str
    seed: int
    group_id: int
    private_seed: int


class Collector:
    """Plays episodes with the engine's policy.

    Args:
        engine: Samples the replies.
        renderer: Text and images to tokens.
        pools: Workers of each environment, by its name.
        context_length: Tokens that the model can read.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        pools: Mapping[str, WorkerPool],
        context_length: int,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.pools = pools
        self.context_length = context_length
        self._sessions = itertools.count()

    def collect(
        self,
        episodes: Sequence[Episode],
        sampling: Sampling,
        on_end: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Trajectory]:
        """Play all episodes; returns their trajectories in the same order.

        An episode that fails is a trajectory with an `error`. One without room for a next reply
        is truncated.

        Args:
            episodes: What to play.
            sampling: How replies are sampled.
            on_end: Called with each trajectory as its episode ends.

        Raises:
            RolloutError: When every episode failed.
            ConfigError: When there is no room for even one reply.
        """
        trajectories = asyncio.run(self._collect(episodes, sampling, on_end))
        if episodes and all(trajectory.error for trajectory in trajectories):
            raise RolloutError(
                f"all {len(episodes)} episodes failed; the first one: {trajectories[0].error}"
            )
        return trajectories

    async def _collect(
        self,
        episodes: Sequence[Episode],
        sampling: Sampling,
        on_end: Callable[[Trajectory], None],
    ) -> list[Trajectory]:
        for pool in self.pools.values():
            pool.open()

        async def play(episode: Episode) -> Trajectory:
            trajectory = await self._play(episode, sampling)
            on_end(trajectory)
            return trajectory

        return await asyncio.gather(*(play(episode) for episode in episodes))

    async def _play(self, episode: Episode, sampling: Sampling) -> Trajectory:
        session = next(self._sessions)
        turns: list[Turn] = []
        stop: Stop = "failed"
        final_observation, error = None, None
        try:
            async with self.pools[episode.environment].episode() as run:
                stop, final_observation = await self._turns(run, session, episode, sampling, turns)
        except RolloutError as failure:  # a bad rollout is data, not a crash
            error = f"{type(failure).__name__}: {failure}"
        finally:
            self.engine.release(session)
        return Trajectory(
            environment=episode.environment,
            seed=episode.seed,
            group_id=episode.group_id,
            policy_version=self.engine.policy_version,
            turns=tuple(turns),
            stop=stop,
            final_observation=final_observation,
            error=error,
        )

    async def _turns(
        self,
        run: Callable,
        session: int,
        episode: Episode,
        sampling: Sampling,
        turns: list[Turn],
    ) -> tuple[Stop, Observation]:
        """Play turns until the episode ends, adding them to `turns` as they are played."""
        transition_seed, reply_seed = _split(episode.private_seed)
        system_prompt, format, observation = await run(reset, episode.seed, transition_seed)
        prompt_ids = self.renderer.first(system_prompt, observation)
        context, images = list(prompt_ids), list(observation.images)
        # A reply that the end of the context cuts off would count as malformed: the agent is not
        # asked unless there is room for all it may say.
        room = self.context_length - sampling.max_tokens
        if len(context) > room:
            raise ConfigError(
                f"the first prompt of environment {episode.environment!r} has {len(context)} "
                f"tokens and a reply may have {sampling.max_tokens}, but the model reads "
                f"{self.context_length}. Shorten the system prompt, make the images smaller, lower "
                "sampling.max_tokens, or take a model with a longer context"
            )
        while True:
            generation = await self.engine.generate(
                GenerationRequest(
                    session=session,
                    prompt_ids=tuple(context),
                    images=tuple(images),
                    sampling=sampling,
                    seed=reply_seed + len(turns),
                )
            )
            reply = format.parse(self.renderer.decode(generation.reply_ids))
            if generation.finish == "length":
                reply = _unfinished(reply, len(generation.reply_ids))
            result = await run(step, reply)
            turns.append(
                Turn(
                    observation=observation,
                    prompt_ids=prompt_ids,
                    reply_ids=generation.reply_ids,
                    reply_logprobs=generation.logprobs,
                    reply=reply,
                    reward=result.reward,
                    finish=generation.finish,
                    metrics=result.metrics,
                )
            )
            observation = result.observation
            if result.terminated:
                return "terminated", observation
            if result.truncated:
                return "truncated", observation
            prompt_ids = self.renderer.next(observation, generation.finish)
            context += [*generation.reply_ids, *prompt_ids]
            images += observation.images
            if len(context) > room:
                return "truncated", observation


def _unfinished(reply: Reply, tokens: int) -> Reply:
    problem = f"no end of turn within {tokens} tokens"
    if reply.problem is not None:
        problem += f"; {reply.problem}"
    return replace(reply, actions=(), problem=problem)


def _split(private_seed: int) -> tuple[int, int]:
    """Two independent 62-bit seeds out of one; the same in every process."""
    words = np.random.SeedSequence(private_seed).generate_state(2, np.uint64) >> 2
    return int(words[0]), int(words[1])
