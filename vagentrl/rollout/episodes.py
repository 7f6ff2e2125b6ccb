"""An episode in progress: the agent and its environment, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vagentrl.engines.base import Generation, GenerationRequest, Sampling
from vagentrl.errors import EnvError, PromptTooLong, RolloutError
from vagentrl.formats import ReplyFormat
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import Worker, reset, step, traits, with_pictures
from vagentrl.types import Finish, Observation, Prompt, Reply, Stop, Trajectory, Turn

if TYPE_CHECKING:
    from vagentrl.rollout.collector import Collector

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
        request = GenerationRequest(
            session=self._session,
            prompt_ids=tuple(conversation.ids),
            images=tuple(conversation.images),
            sampling=sampling,
            seed=self._reply_seed + conversation.turns,
        )
        async with self._collector.gate.passed():
            self._generation = await engine(request)

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
                metrics=dict(result.metrics),  # the environment may change its own
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
