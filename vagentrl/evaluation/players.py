"""Who plays the episodes of an evaluation."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from vagentrl.chat.base import ChatModel, ChatReply
from vagentrl.chat.pictures import picture_block
from vagentrl.contexts import Context
from vagentrl.engines.base import Engine, Sampling
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, RolloutError
from vagentrl.evaluation.ledger import PlayedEpisode
from vagentrl.event_loops import run_to_the_end
from vagentrl.modules.checks import check_least
from vagentrl.policy import Policy, load_policy
from vagentrl.policy.load import find_checkpoint
from vagentrl.rollout.policy_record import Part
from vagentrl.rollout.seeds import mix
from vagentrl.rollout.workers import Beginning, Worker, WorkerPool, reset, step, traits
from vagentrl.types import (
    IMAGE_PLACEHOLDER,
    Claim,
    Observation,
    Reply,
    StepResult,
    Trajectory,
    Turn,
    untokenized_turn,
)

Factory = Callable[[], Environment]


class OnEnd(Protocol):
    """Called with each episode, and with its turns where the player tells them."""

    def __call__(self, episode: PlayedEpisode, trajectory: Trajectory | None = None) -> None: ...


class Start(NamedTuple):
    """An episode to play: the seed of its initial state, and its number among those from there."""

    seed: int
    sample: int


class Player(ABC):
    """Plays episodes of an evaluation."""

    @abstractmethod
    def play(
        self, name: str, environment: str, factory: Factory, starts: Sequence[Start], on_end: OnEnd
    ) -> None:
        """Play an episode from each start.

        Args:
            name: The player's name in the evaluation.
            environment: The environment's.
            factory: Makes the environment.
            starts: The episodes.
            on_end: Called with each episode when it has ended or failed, one call at a time. With
                its trajectory it can be looked at later.
        """

    @abstractmethod
    def identity(self) -> str:
        """A text with all settings that affect the replies; it must not contain a key."""

    @property
    def iteration(self) -> int:
        """Number of training iterations that its weights have learned, as far as is known."""
        return 0

    def token_names(self, ids: list[int]) -> list[str]:
        """The tokens of its trajectories in readable form."""
        return list(map(str, ids))

    def close(self) -> None:  # noqa: B027 (an endpoint holds nothing here)
        """Release memory; called when the player has played all its episodes."""


class PolicyPlayer(Player):
    """A policy whose weights are here: a checkpoint, a run, an export or a Hugging Face model.

    Args:
        source: As `vagentrl.load_policy` takes it.
        sampling: How replies are sampled; None for the policy's own way.
        engine: Makes what samples the replies; None for `TransformersEngine`.
        workers: Run environments in threads, or each in a process of its own.
        max_workers: Episodes that are played at once.
        context: What it sees of the past; None for the policy's own way.
    """

    def __init__(
        self,
        source: str,
        sampling: Sampling | None = None,
        engine: Callable[[], Engine] | None = None,
        workers: Literal["thread", "process"] = "thread",
        max_workers: int = 256,
        context: Context | None = None,
    ) -> None:
        self.source = source
        self.sampling = sampling
        self.context = context
        self.workers: Literal["thread", "process"] = workers
        self.max_workers = max_workers
        self._engine = engine
        self._policy: Policy | None = None

    def identity(self) -> str:
        found = find_checkpoint(self.source)
        sampling = self.sampling or "its own sampling"
        context = "" if self.context is None else f", {Part.of(self.context)}"
        return f"{found}{_stamp(Path(found))}, {sampling}{context}"

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            engine = None if self._engine is None else self._engine()
            self._policy = load_policy(self.source, context=self.context, engine=engine)
        return self._policy

    @property
    def iteration(self) -> int:
        return self.policy.iteration

    def token_names(self, ids: list[int]) -> list[str]:
        return self.policy.renderer.token_names(ids)

    def close(self) -> None:
        self._policy = None

    def play(
        self, name: str, environment: str, factory: Factory, starts: Sequence[Start], on_end: OnEnd
    ) -> None:
        ended = 0

        def record(sample: int, trajectory: Trajectory) -> None:
            nonlocal ended
            ended += 1
            on_end(PlayedEpisode.of(name, environment, sample, trajectory), trajectory)

        try:
            self.policy.play_starts(
                factory,
                starts,
                sampling=self.sampling,
                workers=self.workers,
                max_workers=self.max_workers,
                on_end=record,
            )
        except RolloutError:
            if ended < len(starts):  # otherwise every episode has said how it failed
                raise


class ChatPlayer(Player):
    """A chat model behind an endpoint, which sees the whole conversation, images included.

    Args:
        model: The chat model; it must be able to hold a conversation, as `OpenAIChat` can.
        max_tokens: Maximum length of a reply in tokens.
        workers: Run environments in threads, or each in a process of its own.
        max_workers: Episodes that are played at once.
        timeout_s: Seconds that an environment may take for one reset or step.

    Raises:
        ConfigError: When the model answers single prompts only, or a number is wrong.
    """

    def __init__(
        self,
        model: ChatModel,
        max_tokens: int = 1024,
        workers: Literal["thread", "process"] = "thread",
        max_workers: int = 16,
        timeout_s: float = 60.0,
    ) -> None:
        check_least("ChatPlayer", 1, max_tokens=max_tokens, max_workers=max_workers)
        if type(model).converse is ChatModel.converse:
            raise ConfigError(
                f"{type(model).__name__} answers single prompts only; give a chat model that "
                "holds conversations, such as OpenAIChat"
            )
        self.model = model
        self.max_tokens = max_tokens
        self.workers: Literal["thread", "process"] = workers
        self.max_workers = max_workers
        self.timeout_s = timeout_s

    def identity(self) -> str:
        return f"{self.model.identity()}, {self.max_tokens} tokens"

    def play(
        self, name: str, environment: str, factory: Factory, starts: Sequence[Start], on_end: OnEnd
    ) -> None:
        pool = WorkerPool(
            factory,
            environment,
            kind=self.workers,
            size=self.max_workers,
            timeout_s=self.timeout_s,
        )

        async def play(start: Start) -> None:
            talk = _Talk()
            error = None
            try:
                async with pool.reserve() as worker:
                    await self._converse(pool, worker, start, talk)
            except RolloutError as failure:
                error = f"{type(failure).__name__}: {failure}"
            trajectory = talk.trajectory(environment, start, error)
            episode = PlayedEpisode.of(name, environment, start.sample, trajectory)
            tokens = sum(reply.reply_tokens for reply in talk.replies)
            cost = sum(reply.cost for reply in talk.replies)
            on_end(replace(episode, reply_tokens=tokens, cost=cost), trajectory)

        async def play_all() -> None:
            pool.open()
            await asyncio.gather(*map(play, starts))

        try:
            pool.timeout_s += pool.ask(traits).waits_s
            run_to_the_end(play_all)
        finally:
            pool.close()

    async def _converse(self, pool: WorkerPool, worker: Worker, start: Start, talk: _Talk) -> None:
        """Play an episode into `talk`."""
        begun: Beginning = await pool.run(worker, reset, start.seed, _luck(start))
        prompt = begun.system_prompt
        messages = [{"role": "system", "content": prompt}] if prompt else []
        for example in begun.examples:
            messages.append(_message(example.observation))
            messages.append({"role": "assistant", "content": example.reply})
        talk.observation = begun.observation
        while not talk.over:
            messages.append(_message(talk.observation))
            reply = await self.model.converse(messages, max_tokens=self.max_tokens)
            talk.replies.append(reply)
            messages.append({"role": "assistant", "content": reply.text})
            parsed = begun.format(reply.text)
            result, claims = await pool.run(worker, step, parsed)
            talk.add(parsed, result, claims)


class _Talk:
    """An episode of a chat model as far as it has come."""

    def __init__(self) -> None:
        self.observation = Observation("")
        self.replies: list[ChatReply] = []
        self._turns: list[Turn] = []
        self._last: StepResult | None = None

    @property
    def over(self) -> bool:
        return self._last is not None and bool(self._last.terminated or self._last.truncated)

    def add(self, reply: Reply, result: StepResult, claims: tuple[Claim, ...]) -> None:
        """Add a turn."""
        self._turns.append(untokenized_turn(self.observation, reply, result, claims))
        self._last, self.observation = result, result.observation

    def trajectory(self, environment: str, start: Start, error: str | None) -> Trajectory:
        terminated = self._last is not None and self._last.terminated
        return Trajectory(
            environment=environment,
            seed=start.seed,
            group_id=0,
            turns=tuple(self._turns),
            stop="failed" if error else "terminated" if terminated else "truncated",
            final_observation=None if error else self.observation,
            error=error,
            transition_seed=_luck(start),
        )


def _luck(start: Start) -> int:
    return mix(start.seed, 5, start.sample)


def _message(observation: Observation) -> dict[str, Any]:
    """An observation as a user message, with images as content blocks in their places."""
    text = f"{observation.text}\n{observation.hint}" if observation.hint else observation.text
    if not observation.images:
        return {"role": "user", "content": text}
    return {"role": "user", "content": list(_blocks(text, observation))}


def _blocks(text: str, observation: Observation) -> Iterator[dict[str, Any]]:
    images = iter(observation.images)
    for number, part in enumerate(text.split(IMAGE_PLACEHOLDER)):
        if number:
            yield picture_block(next(images))
        if part:
            yield {"type": "text", "text": part}


def _stamp(path: Path) -> str:
    """What tells a file or a folder from the same one after more training; empty for a name."""
    files = [path] if path.is_file() else sorted(path.glob("*"))
    if not files:
        return ""
    return f" of {max(file.stat().st_mtime_ns for file in files)}"


def player_of(named: str | Player) -> Player:
    """A player; a text names a policy as `vagentrl.load_policy` takes it."""
    return named if isinstance(named, Player) else PolicyPlayer(named)
