"""Plays episodes concurrently, each in a coroutine of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vagentrl import ranks
from vagentrl.contexts import Context, FullHistory
from vagentrl.devices import same_device
from vagentrl.engines.base import Engine, Generation, GenerationRequest, Sampling
from vagentrl.errors import EnvError, PromptTooLong, RolloutError
from vagentrl.event_loops import run_to_the_end
from vagentrl.formats import ReplyFormat
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import Worker, WorkerPool, reset, step, traits, with_pictures
from vagentrl.types import Finish, Observation, Prompt, Reply, Stop, Trajectory, Turn

OnEnd = Callable[[Trajectory], None]
OnTurn = Callable[[Turn], None]


@dataclass(frozen=True)
class Episode:
    """An episode to play.

    Attributes:
        environment: Name of the environment.
        seed: Seed of its initial state.
        group_id: Number of its group; the episodes of a group share only `seed`.
        private_seed: Seeds everything that differs within a group: the randomness of transitions
            and of sampling.
        iteration: The training iteration, for environments that change over the training.
        transition_seed: Seed of the transitions; None derives one from `private_seed`.
        replies: Tokens of the replies of an earlier episode from the same seeds, each with how the
            reply ended. They are replayed before the agent plays on, and are not part of the
            trajectory.
        turns: Turns that the agent plays at most; the episode is then cut. None: to its end.
    """

    environment: str
    seed: int
    group_id: int
    private_seed: int
    iteration: int = 0
    transition_seed: int | None = None
    replies: tuple[tuple[tuple[int, ...], Finish], ...] = ()
    turns: int | None = None


class Collector:
    """Plays episodes with the engine's policy.

    Args:
        engine: Samples the replies.
        renderer: Turns text and images into tokens.
        pools: The pool of workers of each environment, by the environment's name.
        context_length: Length of the model's context in tokens.
        context: Which earlier turns the model sees.
        lockstep: Play all episodes turn by turn: sample all replies of a turn, then step one
            environment after the other. The episodes are the same, but take longer.

    Attributes:
        instructions: System prompt and reply format of the latest episode in each environment.
        cancelled: Whether no more episodes are played.
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
        self.instructions: dict[str, tuple[str, ReplyFormat]] = {}
        self.cancelled = False
        self._playing: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

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
            episodes: The episodes to play.
            sampling: How replies are sampled.
            on_end: Called with each trajectory when its episode ends.
            on_turn: Called with each turn when it ends.

        Raises:
            RolloutError: When every episode failed, on every rank.
            EngineDead: When the engine can answer nothing any more.
        """

        async def play(episode: Episode) -> list[Trajectory]:
            running = RunningEpisode(self, episode)
            try:
                async with self.pools[episode.environment].reserve() as worker:
                    await running.begin(worker)
                    while not running.over:
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
        workers = [self.pools[episode.environment].acquire() for episode in episodes]
        try:
            for running, worker in zip(playing, workers, strict=True):
                await running.fail_on_error(running.begin(worker))
            while alive := [running for running in playing if not running.over]:
                sampled = (running.fail_on_error(running.sample(sampling)) for running in alive)
                await asyncio.gather(*sampled)
                for running in alive:
                    if running.stop is None:
                        await running.fail_on_error(answer(running))
        finally:
            for running, worker in zip(playing, workers, strict=True):
                healthy = running.over and running.stop != "failed"
                self.pools[running.episode.environment].release(worker, healthy=healthy)
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
        """Play a fixed number of turns in every slot, however long its episodes are (Verlog).

        When an episode ends, the slot starts its next one. An episode that has not ended after the
        last turn is cut there, and continues in the next call. The turn in which an episode fails
        counts as one of its slot's turns.

        Args:
            slots: The slots to play in.
            turns: Number of turns in each slot.
            sampling: How replies are sampled.
            on_end: Called with each trajectory when it ends or is cut.
            on_turn: Called with each turn when it ends.
            iteration: The training iteration, for episodes that start in this call.

        Returns:
            All trajectories of the first slot in the order of play, then those of the next slot.

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

    def cancel(self) -> None:
        """Cancel the episodes that another thread plays, which then gets a `CancelledError`.

        Nothing is played until `cancelled` is False again.
        """
        self.cancelled = True
        if self._playing is not None:
            loop, task = self._playing
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(task.cancel)

    def _run(self, playing: Sequence[Coroutine[Any, Any, list[Trajectory]]]) -> list[Trajectory]:
        async def run() -> list[list[Trajectory]]:
            task = asyncio.current_task()
            assert task is not None
            self._playing = asyncio.get_running_loop(), task
            if self.cancelled:  # before this thread could be found
                task.cancel()
            try:
                for pool in self.pools.values():
                    pool.open()
                return await asyncio.gather(*playing)
            finally:
                self._playing = None

        everyones = run_to_the_end(run, same_device())
        trajectories = [trajectory for played in everyones for trajectory in played]
        failed = all(trajectory.error for trajectory in trajectories)
        if all(ranks.gather([failed])) and trajectories:
            raise RolloutError(
                f"all {len(trajectories)} episodes failed; the first one: {trajectories[0].error}"
            )
        return trajectories


class EnvironmentSlot:
    """A persistent environment: one episode follows another, and may span several batches.

    Args:
        episodes: Returns the slot's n-th episode; counted from 0.
    """

    def __init__(self, episodes: Callable[[int], Episode]) -> None:
        self._episodes = episodes
        self._number = 0
        self._iteration = 0  # the iteration in which the episode began
        # Replies of the episode from before a resume, to be replayed before it continues.
        self._replies_before: list[tuple[tuple[int, ...], Finish]] = []
        self._running: RunningEpisode | None = None
        self._worker: Worker | None = None

    async def turn(
        self,
        collector: Collector,
        sampling: Sampling,
        on_turn: OnTurn = lambda turn: None,
        iteration: int = 0,
    ) -> RunningEpisode:
        """Play one turn, of the slot's next episode if the current one has ended."""
        if self._running is not None and self._running.stop is not None:
            self._running, self._number = None, self._number + 1
        if self._running is None and not self._replies_before:
            self._iteration = iteration
        episode = replace(
            self._episodes(self._number),
            iteration=self._iteration,
            replies=tuple(self._replies_before),
        )
        pool = collector.pools[episode.environment]
        running = self._running = self._running or RunningEpisode(collector, episode)
        try:
            if self._worker is None:
                self._worker = pool.acquire()
            if not running.begun:
                await running.begin(self._worker)
            on_turn(await running.play(sampling))
        except RolloutError as error:
            running.fail(error)
            if self._worker is not None:
                pool.release(self._worker, healthy=False)
            self._worker = None
        self._replies_before = []
        return running

    def close(self, collector: Collector) -> None:
        """Release the environment. A later turn would replay the episode in another one."""
        if self._worker is not None:
            collector.pools[self._episodes(self._number).environment].release(self._worker)
        self._worker = None
        self.load_state_dict(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue: the episode's number and its replies so far."""
        replies = self._replies_before if self._running is None else self._running.replies
        over = self._running is not None and self._running.stop is not None
        return {
            "number": self._number + over,
            "iteration": self._iteration,
            "replies": [] if over else list(replies),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this state: the next turn first replays the episode from its seeds."""
        self._number, self._iteration = state["number"], state["iteration"]
        self._replies_before = [(tuple(ids), finish) for ids, finish in state["replies"]]
        self._running = None


class RunningEpisode:
    """An episode in progress.

    Args:
        collector: Provides the engine, the renderer and the environments.
        episode: The episode to play.

    Attributes:
        stop: How the episode ended; None while it is still running.
        begun: Whether the environment was reset.
        replies: The tokens of each reply, and whether it ended by itself or at the token limit.
    """

    def __init__(self, collector: Collector, episode: Episode) -> None:
        self.episode = episode
        self.stop: Stop | None = None
        self.begun = False
        self.replies: list[tuple[tuple[int, ...], Finish]] = []
        self._collector = collector
        self._session = next(collector.sessions)
        self._transition_seed, self._reply_seed = _split(episode.private_seed)
        if episode.transition_seed is not None:
            self._transition_seed = episode.transition_seed
        self._turns: list[Turn] = []
        self._earlier_turns, self._earlier_reward = 0, 0.0
        self._observation: Observation | None = None
        self._prompt: Prompt | None = None
        self._error: str | None = None

    async def begin(self, worker: Worker) -> None:
        """Reset the environment, and render its first observation as a prompt."""
        collector, episode = self._collector, self.episode
        self._pool, self._worker = collector.pools[episode.environment], worker
        beginning = await self._pool.run(
            worker, reset, episode.seed, self._transition_seed, episode.iteration
        )
        self._format = beginning.format
        collector.instructions[episode.environment] = (beginning.system_prompt, self._format)
        self._conversation = Conversation(
            collector.renderer, collector.context, beginning.system_prompt, beginning.examples
        )
        self.begun = True
        self._ask(beginning.observation)
        await self._replay(episode.replies)

    @property
    def over(self) -> bool:
        """Whether the episode has ended, or has had all the turns that it was given."""
        return self.stop is not None or len(self._turns) == self.episode.turns

    async def fail_on_error(self, stage: Coroutine[Any, Any, None]) -> None:
        """Await `stage`; if it raises a rollout error, mark the episode as failed."""
        try:
            await stage
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
                f"the context is {self._collector.context_length} tokens long. Shorten the system "
                "prompt, make the images smaller, lower sampling.max_tokens, or use a model with "
                "a longer context"
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
        """Step the environment with the sampled reply; truncate if the next one has no room."""
        await self.reply(self._generation)
        if self.stop is None and len(self._conversation.ids) > self._room:
            self.stop = "truncated"
        return self._turns[-1]

    async def reply(self, generation: Generation) -> None:
        """Step the environment with a reply, and render the new observation as a prompt."""
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
                claims=with_pictures(claims, self._observation, result),
                policy_version=generation.policy_version,
            )
        )
        self._conversation.reply(reply_ids)
        self._ask(result.observation)
        if result.terminated:
            self.stop = "terminated"
        elif result.truncated:
            self.stop = "truncated"

    async def _replay(self, replies: Sequence[tuple[tuple[int, ...], Finish]]) -> None:
        """Step the environment with the replies of an earlier episode, to restore its state."""
        if not replies:
            return
        if not (await self._pool.run(self._worker, traits)).replays:
            raise EnvError(
                f"environment {self.episode.environment!r} cannot replay an episode, so this one "
                "cannot continue where it was left; everything it shows must follow from its seeds"
            )
        for reply_ids, finish in replies:
            zeros = (0.0,) * len(reply_ids)
            await self.reply(Generation(reply_ids, zeros, finish, policy_version=-1))
            if self.stop is not None:
                raise EnvError(
                    f"environment {self.episode.environment!r} ended an episode on replay "
                    f"({self.stop}) that had continued at the same turn before; everything it "
                    "does must follow from its seeds and the replies"
                )
        self.take()

    def _ask(self, observation: Observation) -> None:
        self._observation = observation
        self._prompt = self._conversation.ask(observation)

    def fail(self, error: RolloutError) -> None:
        """Mark the episode as failed: a failed episode is recorded and does not end the run."""
        self.stop, self._error = "failed", f"{type(error).__name__}: {error}"

    def take(self) -> Trajectory:
        """The turns since the last `take` as a trajectory; ``cut`` if the episode is not over."""
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
            self._prompt = self._conversation.whole()  # the next turn begins a new row
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
    """Derive two independent 62-bit seeds from one; every process derives the same."""
    words = np.random.SeedSequence(private_seed).generate_state(2, np.uint64) >> 2
    return int(words[0]), int(words[1])
