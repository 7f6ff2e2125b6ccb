"""Play episodes: each is its own coroutine, and nobody waits for the slowest."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vagentrl import ranks
from vagentrl.contexts import Context, FullHistory
from vagentrl.engines.base import Engine, Generation, GenerationRequest, Sampling
from vagentrl.errors import EnvError, PromptTooLong, RolloutError
from vagentrl.event_loops import run_to_the_end
from vagentrl.formats import ReplyFormat
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import Worker, WorkerPool, reset, step, traits
from vagentrl.types import Finish, Observation, Prompt, Reply, Stop, Trajectory, Turn

OnEnd = Callable[[Trajectory], None]
OnTurn = Callable[[Turn], None]


@dataclass(frozen=True)
class Episode:
    """An episode to play.

    Attributes:
        environment: Name of the environment.
        seed: Seed of its initial state.
        group_id: Episodes of one group share `seed` and nothing else.
        private_seed: Decides everything that members of a group do not share: the randomness of
            transitions and of sampling.
        iteration: Of the training, for environments that change with it.
    """

    environment: str
    seed: int
    group_id: int
    private_seed: int
    iteration: int = 0


class Collector:
    """Plays episodes with the engine's policy.

    Args:
        engine: Samples the replies.
        renderer: Text and images to tokens.
        pools: Workers of each environment, by its name.
        context_length: Tokens that the model can read.
        context: What the model sees of the past.
        lockstep: Play a turn of every episode before the next turn of any: sample all replies,
            then step one environment after the other. The episodes are the same, only slower.

    Attributes:
        asked: System prompt and reply format of the latest episode in each environment.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        pools: Mapping[str, WorkerPool],
        context_length: int,
        context: Context = FullHistory(),  # noqa: B008 (frozen)
        lockstep: bool = False,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.pools = pools
        self.context_length = context_length
        self.context = context
        self.lockstep = lockstep
        self.sessions = itertools.count()
        self.asked: dict[str, tuple[str, ReplyFormat]] = {}

    def collect(
        self,
        episodes: Sequence[Episode],
        sampling: Sampling,
        on_end: OnEnd = lambda trajectory: None,
        on_turn: OnTurn = lambda turn: None,
    ) -> list[Trajectory]:
        """Play all episodes; returns their trajectories in the same order.

        An episode that fails is a trajectory with an `error`; so is one whose first prompt leaves
        no room for a reply. One without room for a later reply is truncated.

        Args:
            episodes: What to play.
            sampling: How replies are sampled.
            on_end: Called with each trajectory as its episode ends.
            on_turn: Called with each turn as it ends.

        Raises:
            RolloutError: When every episode failed, on every rank.
            EngineDead: When the engine can answer nothing any more.
        """

        async def play(episode: Episode) -> list[Trajectory]:
            running = RunningEpisode(self, episode)
            try:
                async with self.pools[episode.environment].place() as worker:
                    await running.begin(worker)
                    while running.stop is None:
                        on_turn(await running.play(sampling))
            except RolloutError as error:
                running.fail(error)
            trajectory = running.take()
            on_end(trajectory)
            return [trajectory]

        if self.lockstep:
            return self._run([self._in_lockstep(episodes, sampling, on_end, on_turn)])
        return self._run([play(episode) for episode in episodes])

    async def _in_lockstep(
        self, episodes: Sequence[Episode], sampling: Sampling, on_end: OnEnd, on_turn: OnTurn
    ) -> list[Trajectory]:
        async def answer(running: RunningEpisode) -> None:
            on_turn(await running.answer())

        playing = [RunningEpisode(self, episode) for episode in episodes]
        workers = [self.pools[episode.environment].hire() for episode in episodes]
        try:
            for running, worker in zip(playing, workers, strict=True):
                await running.guard(running.begin(worker))
            while alive := [running for running in playing if running.stop is None]:
                sampled = (running.guard(running.sample(sampling)) for running in alive)
                await asyncio.gather(*sampled)
                for running in alive:
                    if running.stop is None:
                        await running.guard(answer(running))
        finally:
            for running, worker in zip(playing, workers, strict=True):
                sound = running.stop in ("terminated", "truncated")
                self.pools[running.episode.environment].dismiss(worker, sound=sound)
        trajectories = [running.take() for running in playing]
        for trajectory in trajectories:
            on_end(trajectory)
        return trajectories

    def collect_turns(
        self,
        slots: Sequence[EnvironmentSlot],
        turns: int,
        sampling: Sampling,
        on_end: OnEnd = lambda trajectory: None,
        on_turn: OnTurn = lambda turn: None,
        iteration: int = 0,
    ) -> list[Trajectory]:
        """Play so many turns in every slot, however long its episodes are (Verlog).

        An episode that ends gives way to the slot's next. One that is still going on after the
        last turn is cut there, and goes on in the next call. An episode that fails costs its slot
        the turn in which it failed.

        Args:
            slots: Where to play on.
            turns: Turns in each.
            sampling: How replies are sampled.
            on_end: Called with each trajectory as it ends or is cut.
            on_turn: Called with each turn as it ends.
            iteration: Of the training, for the episodes that begin.

        Returns:
            Trajectories, slot after slot, in the order in which they were played.

        Raises:
            RolloutError: When every episode failed, on every rank.
            EngineDead: When the engine can answer nothing any more.
        """

        async def play(slot: EnvironmentSlot) -> list[Trajectory]:
            trajectories: list[Trajectory] = []
            for left in reversed(range(turns)):
                running = await slot.turn(self, sampling, on_turn, iteration)
                if left == 0 or running.stop is not None:
                    trajectories.append(running.take())
                    on_end(trajectories[-1])
            return trajectories

        return self._run([play(slot) for slot in slots])

    def _run(self, playing: Sequence[Coroutine[Any, Any, list[Trajectory]]]) -> list[Trajectory]:
        async def run() -> list[list[Trajectory]]:
            for pool in self.pools.values():
                pool.open()
            return await asyncio.gather(*playing)

        trajectories = [trajectory for played in run_to_the_end(run) for trajectory in played]
        failed = all(trajectory.error for trajectory in trajectories)
        if all(ranks.gather([failed])) and trajectories:
            raise RolloutError(
                f"all {len(trajectories)} episodes failed; the first one: {trajectories[0].error}"
            )
        return trajectories


class EnvironmentSlot:
    """A place where one episode follows another, from batch to batch.

    Args:
        episodes: The slot's episode by its number, from 0.
    """

    def __init__(self, episodes: Callable[[int], Episode]) -> None:
        self._episodes = episodes
        self._number = 0
        self._iteration = 0  # in which the episode began
        self._replies_before: list[tuple[tuple[int, ...], Finish]] = []  # to play again
        self._running: RunningEpisode | None = None
        self._worker: Worker | None = None

    async def turn(
        self,
        collector: Collector,
        sampling: Sampling,
        on_turn: OnTurn = lambda turn: None,
        iteration: int = 0,
    ) -> RunningEpisode:
        """Play one turn; an episode that is over gives way to the next."""
        if self._running is not None and self._running.stop is not None:
            self._running, self._number = None, self._number + 1
        if self._running is None and not self._replies_before:
            self._iteration = iteration
        episode = replace(self._episodes(self._number), iteration=self._iteration)
        pool = collector.pools[episode.environment]
        running = self._running = self._running or RunningEpisode(collector, episode)
        try:
            if self._worker is None:
                self._worker = pool.hire()
            if not running.begun:
                await running.begin(self._worker)
                await running.replay(self._replies_before)
            on_turn(await running.play(sampling))
        except RolloutError as error:
            running.fail(error)
            if self._worker is not None:
                pool.dismiss(self._worker, sound=False)
            self._worker = None
        self._replies_before = []
        return running

    def close(self, collector: Collector) -> None:
        """Release the environment; the next turn would replay the episode in another one."""
        if self._worker is not None:
            collector.pools[self._episodes(self._number).environment].dismiss(self._worker)
        self._worker = None
        self.load_state_dict(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """What another process needs to continue: the episode's number and its replies so far."""
        replies = self._replies_before if self._running is None else self._running.replies
        over = self._running is not None and self._running.stop is not None
        return {
            "number": self._number + over,
            "iteration": self._iteration,
            "replies": [] if over else list(replies),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there: the next turn first replays the episode from its seeds."""
        self._number, self._iteration = state["number"], state["iteration"]
        self._replies_before = [(tuple(ids), finish) for ids, finish in state["replies"]]
        self._running = None


class RunningEpisode:
    """An episode in progress.

    Args:
        collector: Brings engine, renderer and environments.
        episode: What to play.

    Attributes:
        stop: How it ended; None while it goes on.
        begun: Whether the environment was reset.
        replies: The tokens of every reply, and how it ended.
    """

    def __init__(self, collector: Collector, episode: Episode) -> None:
        self.episode = episode
        self.stop: Stop | None = None
        self.begun = False
        self.replies: list[tuple[tuple[int, ...], Finish]] = []
        self._collector = collector
        self._session = next(collector.sessions)
        self._transition_seed, self._reply_seed = _split(episode.private_seed)
        self._turns: list[Turn] = []
        self._earlier_turns, self._earlier_reward = 0, 0.0
        self._observation: Observation | None = None
        self._prompt: Prompt | None = None
        self._error: str | None = None

    async def begin(self, worker: Worker) -> None:
        """Reset the environment, and render its observation for the first reply."""
        collector, episode = self._collector, self.episode
        self._pool, self._worker = collector.pools[episode.environment], worker
        system_prompt, self._format, observation = await self._pool.run(
            worker, reset, episode.seed, self._transition_seed, episode.iteration
        )
        collector.asked[episode.environment] = (system_prompt, self._format)
        self._conversation = Conversation(collector.renderer, collector.context, system_prompt)
        self.begun = True
        self._ask(observation)

    async def guard(self, doing: Coroutine[Any, Any, None]) -> None:
        """Await `doing`; if it raises a rollout error, the episode fails."""
        try:
            await doing
        except RolloutError as error:
            self.fail(error)

    async def play(self, sampling: Sampling) -> Turn:
        """Sample a reply and step the environment with it."""
        await self.sample(sampling)
        return await self.answer()

    async def sample(self, sampling: Sampling) -> None:
        """Sample a reply.

        Raises:
            PromptTooLong: When the first prompt leaves no room for a whole reply.
        """
        # A reply that the end of the context cuts off would count as malformed: the agent is not
        # asked unless there is room for all it may say.
        engine, conversation = self._collector.engine, self._conversation
        room = self._collector.context_length - sampling.max_tokens
        if len(conversation.ids) > room:
            raise PromptTooLong(
                f"the first prompt of environment {self.episode.environment!r} has "
                f"{len(conversation.ids)} tokens and a reply may have {sampling.max_tokens}, but "
                f"the model reads {self._collector.context_length}. Shorten the system prompt, "
                "make the images smaller, lower sampling.max_tokens, or take a model with a "
                "longer context"
            )
        self._room = room
        self._generation = await engine(
            GenerationRequest(
                session=self._session,
                prompt_ids=tuple(conversation.ids),
                images=tuple(conversation.images),
                sampling=sampling,
                seed=self._reply_seed + conversation.turns,
            )
        )

    async def answer(self) -> Turn:
        """Step the environment with the reply that was sampled."""
        await self.reply(self._generation)
        if self.stop is None and len(self._conversation.ids) > self._room:
            self.stop = "truncated"
        return self._turns[-1]

    async def reply(self, generation: Generation) -> None:
        """Step the environment with a reply, and render its observation for the next one."""
        assert self._observation is not None
        assert self._prompt is not None
        reply_ids, finish = generation.reply_ids, generation.finish
        self.replies.append((reply_ids, finish))
        reply = read_reply(self._collector.renderer, self._format, reply_ids, finish)
        result, claims = await self._pool.run(self._worker, step, reply)
        self._turns.append(
            Turn(
                observation=self._observation,
                prompt=self._prompt,
                reply_ids=reply_ids,
                reply_logprobs=generation.logprobs,
                reply=reply,
                reward=result.reward,
                finish=finish,
                metrics=result.metrics,
                claims=claims,
                policy_version=generation.policy_version,
            )
        )
        self._conversation.reply(reply_ids)
        self._ask(result.observation)
        if result.terminated:
            self.stop = "terminated"
        elif result.truncated:
            self.stop = "truncated"

    async def replay(self, replies: Sequence[tuple[tuple[int, ...], Finish]]) -> None:
        """Step the environment with replies of an earlier run, back to where they had led."""
        replays, _ = await self._pool.run(self._worker, traits)
        if replies and not replays:
            raise EnvError(
                f"environment {self.episode.environment!r} cannot play an episode again, so this "
                "one cannot go on after a break; its seeds must decide all that it shows"
            )
        for reply_ids, finish in replies:  # these turns are not learned from again
            zeros = (0.0,) * len(reply_ids)
            await self.reply(Generation(reply_ids, zeros, finish, policy_version=-1))
            if self.stop is not None:
                raise EnvError(
                    f"environment {self.episode.environment!r} ended ({self.stop}) where it went "
                    "on when it was played first; its seeds must decide all that it does"
                )
        if replies:
            self.take()

    def _ask(self, observation: Observation) -> None:
        self._observation = observation
        self._prompt = self._conversation.ask(observation)

    def fail(self, error: RolloutError) -> None:
        """A bad rollout is data, not a crash."""
        self.stop, self._error = "failed", f"{type(error).__name__}: {error}"

    def take(self) -> Trajectory:
        """The turns since the last `take`, as a trajectory; ``cut`` when the episode goes on."""
        self._collector.engine.release(self._session)
        stop: Stop = self.stop or "cut"
        shown = stop != "failed"
        fits = shown and len(self._conversation.ids) <= self._collector.context_length
        trajectory = Trajectory(
            environment=self.episode.environment,
            seed=self.episode.seed,
            group_id=self.episode.group_id,
            turns=tuple(self._turns),
            stop=stop,
            final_observation=self._observation if shown else None,
            end=self._prompt if fits and stop != "terminated" else None,
            error=self._error,
            transition_seed=self._transition_seed,
            earlier_turns=self._earlier_turns,
            earlier_reward=self._earlier_reward,
        )
        self._earlier_turns += len(self._turns)
        self._earlier_reward += trajectory.total_reward
        self._turns = []
        if self.stop is None:
            self._prompt = self._conversation.whole()  # the next turn begins a row
        return trajectory


def read_reply(
    renderer: Renderer, format: ReplyFormat, reply_ids: tuple[int, ...], finish: Finish
) -> Reply:
    """The text of a reply, parsed; one that was cut off is malformed."""
    reply = format(renderer.decode(reply_ids))
    if finish == "stop":
        return reply
    problem = f"no end of turn within {len(reply_ids)} tokens"
    if reply.problem is not None:
        problem += f"; {reply.problem}"
    return replace(reply, actions=(), problem=problem)


def _split(private_seed: int) -> tuple[int, int]:
    """Two independent 62-bit seeds out of one; the same in every process."""
    words = np.random.SeedSequence(private_seed).generate_state(2, np.uint64) >> 2
    return int(words[0]), int(words[1])
