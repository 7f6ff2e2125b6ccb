"""A policy plays episodes and answers observations, by the code that plays in training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from transformers import PreTrainedModel

from vagentrl.contexts import Context, FullHistory
from vagentrl.engines import TransformersEngine
from vagentrl.engines.base import Engine, GenerationRequest, Sampling
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.event_loops import run_to_the_end
from vagentrl.formats import ReplyFormat
from vagentrl.models.load import context_length as longest_context
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.episodes import Episode, read_reply
from vagentrl.rollout.policy_record import PolicyRecord
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.seeds import mix
from vagentrl.rollout.workers import WorkerPool, check_factory, class_name, traits
from vagentrl.types import Observation, Reply, Trajectory, Turn

DEFAULT_SAMPLING = Sampling().in_evaluations()


class Policy:
    """A model, its tokenizer and how it is asked for replies. See `load_policy`.

    Args:
        name: The model that it started from, as `AgentModule` was given it.
        model: A Hugging Face model with its language-model head.
        renderer: Its tokenizer and image processor.
        sampling: How replies are sampled where nothing else is said.
        context: What it sees of the past.
        context_length: Tokens that it may read; None: all that it can.
        system_prompt: Said first in a `Dialogue` where nothing else is said.
        reply_format: How its replies are parsed in a `Dialogue` where nothing else is said.
        engine: Samples the replies; None: `TransformersEngine`.
        record: What its checkpoint says of it.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        renderer: Renderer,
        *,
        sampling: Sampling = DEFAULT_SAMPLING,
        context: Context = FullHistory(),  # noqa: B008 (holds only settings)
        context_length: int | None = None,
        system_prompt: str | None = None,
        reply_format: ReplyFormat | None = None,
        engine: Engine | None = None,
        record: PolicyRecord | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.renderer = renderer
        self.sampling = sampling
        self.context = context
        self.context_length = context_length or longest_context(model.config)
        self.system_prompt = system_prompt
        self.reply_format = reply_format
        self.engine = engine if engine is not None else TransformersEngine()
        self.record = record
        self.iteration = 0 if record is None else record.iteration
        self._sessions = itertools.count()
        self.engine.prepare(renderer.vocabulary(self.context_length))
        self.engine.update_weights(model, self.iteration)

    def play(
        self,
        environment: Environment | Callable[[], Environment],
        seed: int,
        *,
        sampling: Sampling | None = None,
    ) -> Trajectory:
        """Play one episode.

        Args:
            environment: An environment, or the class or function that makes one.
            seed: Decides the episode, together with the weights and the sampling.
            sampling: How replies are sampled; None: `self.sampling`.

        Raises:
            RolloutError: When the episode fails.
        """
        [trajectory] = self.evaluate(environment, [seed], sampling=sampling)
        return trajectory

    def evaluate(
        self,
        environment: Environment | Callable[[], Environment],
        seeds: Sequence[int],
        *,
        sampling: Sampling | None = None,
        workers: Literal["thread", "process"] = "thread",
        max_workers: int = 512,
        timeout_s: float = 60.0,
    ) -> list[Trajectory]:
        """Play an episode for each seed, many at a time.

        `vagentrl.environment.seed_of` gives the seeds of a split, such as ``validation``.

        Args:
            environment: The class or function that makes an environment. A single environment will
                do too, for one episode after the other.
            seeds: Decide the episodes, together with the weights and the sampling.
            sampling: How replies are sampled; None: `self.sampling`.
            workers: Run environments in threads, or each in a process of its own.
            max_workers: Episodes that are played at once.
            timeout_s: Seconds that an environment may take for one reset or step.

        Returns:
            The episodes, in the order of the seeds; one that failed has an `error`.

        Raises:
            RolloutError: When every episode fails.
        """
        return self.play_starts(
            environment,
            [(seed, 0) for seed in seeds],
            sampling=sampling,
            workers=workers,
            max_workers=max_workers,
            timeout_s=timeout_s,
        )

    def play_starts(
        self,
        environment: Environment | Callable[[], Environment],
        starts: Sequence[tuple[int, int]],
        *,
        sampling: Sampling | None = None,
        workers: Literal["thread", "process"] = "thread",
        max_workers: int = 512,
        timeout_s: float = 60.0,
        on_end: Callable[[int, Trajectory], None] = lambda sample, trajectory: None,
    ) -> list[Trajectory]:
        """Play several episodes from a seed; otherwise as `evaluate`.

        Args:
            environment: As in `evaluate`.
            starts: For each episode its seed and its number among those from the same seed, from 0,
                which differ in the luck of sampling and of transitions.
            sampling: As in `evaluate`.
            workers: As in `evaluate`.
            max_workers: As in `evaluate`.
            timeout_s: As in `evaluate`.
            on_end: Called with the number and the trajectory of each episode when it ends.
        """
        pool = _pool(environment, workers, max_workers, timeout_s)
        try:
            name = pool.name = pool.ask(class_name)
            pool.timeout_s += pool.ask(traits).waits_s
            episodes = [
                Episode(name, seed, number, _luck(seed, sample), self.iteration)
                for number, (seed, sample) in enumerate(starts)
            ]
            collector = Collector(
                self.engine, self.renderer, {name: pool}, self.context_length, self.context
            )
            collector.sessions = self._sessions
            return collector.collect(
                episodes,
                sampling or self.sampling,
                lambda trajectory: on_end(starts[trajectory.group_id][1], trajectory),
            )
        finally:
            pool.close()

    def play_on(
        self,
        environment: Callable[[], Environment],
        episode: Episode,
        earlier: Sequence[Turn],
        samples: int,
        *,
        sampling: Sampling | None = None,
        workers: Literal["thread", "process"] = "thread",
        timeout_s: float = 60.0,
    ) -> list[Trajectory]:
        """Play on from the middle of an episode, several times.

        Args:
            environment: The class or function that makes the environment.
            episode: The episode. Its `private_seed` decides what is sampled; its `group_id` and its
                `replies` are not used.
            earlier: The turns before, whoever played them. Their replies are played again.
            samples: Number of episodes that begin with these turns.
            sampling: As in `evaluate`.
            workers: As in `evaluate`.
            timeout_s: As in `evaluate`.

        Returns:
            The episodes, without the earlier turns; one that failed has an `error`.

        Raises:
            RolloutError: When every episode fails.
        """
        check_factory(environment, "the environment")
        name = episode.environment
        pool = WorkerPool(environment, name, kind=workers, size=samples, timeout_s=timeout_s)
        replies = tuple((self._ids(turn), turn.finish) for turn in earlier)
        try:
            pool.timeout_s += pool.ask(traits).waits_s
            episodes = [
                replace(
                    episode,
                    group_id=number,
                    private_seed=mix(episode.private_seed, number),
                    replies=replies,
                )
                for number in range(samples)
            ]
            collector = Collector(
                self.engine, self.renderer, {name: pool}, self.context_length, self.context
            )
            collector.sessions = self._sessions
            return collector.collect(episodes, sampling or self.sampling)
        finally:
            pool.close()

    def _ids(self, turn: Turn) -> tuple[int, ...]:
        """The tokens of a reply: those that were sampled, if this policy's tokenizer knows them."""
        text, known = turn.reply.text, len(self.renderer.tokenizer)
        own = bool(turn.reply_ids) and max(turn.reply_ids) < known
        if own and self.renderer.decode(turn.reply_ids) == text:
            return turn.reply_ids
        return (*self.renderer.encode_text(text), self.renderer.end_of_turn)

    def converse(
        self,
        system_prompt: str | None = None,
        reply_format: ReplyFormat | None = None,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> Dialogue:
        """Start a conversation.

        Args:
            system_prompt: What an environment's `system_prompt` says; None: as in training.
            reply_format: An environment's `format`; None: as in training.
            sampling: How replies are sampled; None: `self.sampling`.
            seed: Decides the replies, together with the weights and what is said.

        Raises:
            ConfigError: When nothing is known of the training and something is not given.
        """
        system_prompt = self.system_prompt if system_prompt is None else system_prompt
        reply_format = reply_format or self.reply_format
        if system_prompt is None or reply_format is None:
            raise ConfigError(
                "it is not known which task the policy was trained for; give the environment's "
                "system_prompt() and its format"
            )
        return Dialogue(
            self, system_prompt, reply_format, sampling or self.sampling, next(self._sessions), seed
        )

    def reply(
        self,
        observation: Observation,
        system_prompt: str | None = None,
        reply_format: ReplyFormat | None = None,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> Reply:
        """Answer one observation, the first of a conversation; see `converse`."""
        dialogue = self.converse(system_prompt, reply_format, sampling=sampling, seed=seed)
        try:
            return dialogue.ask(observation)
        finally:
            dialogue.close()


class Dialogue:
    """A conversation with a policy, which sees of the past what it sees in an episode.

    Made by `Policy.converse`.

    Attributes:
        replies: What the policy has said.
    """

    def __init__(
        self,
        policy: Policy,
        system_prompt: str,
        reply_format: ReplyFormat,
        sampling: Sampling,
        session: int,
        seed: int,
    ) -> None:
        self.replies: list[Reply] = []
        self._policy = policy
        self._format = reply_format
        self._sampling = sampling
        self._session = session
        self._seed = seed
        self._conversation = Conversation(policy.renderer, policy.context, system_prompt)

    def ask(self, observation: Observation) -> Reply:
        """The policy's reply to what it sees next.

        Raises:
            ConfigError: When the conversation has no room for a reply.
        """
        conversation, policy = self._conversation, self._policy
        conversation.ask(observation)
        if len(conversation.ids) + self._sampling.max_tokens > policy.context_length:
            raise ConfigError(
                f"the conversation has {len(conversation.ids)} tokens and a reply may have "
                f"{self._sampling.max_tokens}, but the policy reads {policy.context_length}; start "
                "another, or load the policy with context=Window(...)"
            )
        request = GenerationRequest(
            session=self._session,
            prompt_ids=tuple(conversation.ids),
            images=tuple(conversation.images),
            sampling=self._sampling,
            seed=self._seed + conversation.turns,
        )
        said = run_to_the_end(partial(policy.engine.generate, request))
        conversation.reply(said.reply_ids)
        self.replies.append(read_reply(policy.renderer, self._format, said.reply_ids, said.finish))
        return self.replies[-1]

    def close(self) -> None:
        """Let the engine forget what it keeps of the conversation."""
        self._policy.engine.release(self._session)


def _luck(seed: int, sample: int) -> int:
    """What decides an episode beside its initial state; the first is that of evaluations."""
    return mix(seed, 4, sample) if sample else mix(seed, 4)


def _pool(
    environment: Environment | Callable[[], Environment],
    workers: Literal["thread", "process"],
    max_workers: int,
    timeout_s: float,
) -> WorkerPool:
    if isinstance(environment, Environment):  # it plays alone, and stays open
        return WorkerPool(lambda: environment, "given", size=1, timeout_s=timeout_s, closes=False)
    check_factory(environment, "the environment")
    return WorkerPool(environment, "given", kind=workers, size=max_workers, timeout_s=timeout_s)
