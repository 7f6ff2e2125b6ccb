"""Who plays the episodes of an evaluation."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vagentrl.chat.base import ChatModel, ChatReply
from vagentrl.engines.base import Engine, Sampling
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, RolloutError, VagentError, where
from vagentrl.evaluation.ledger import PlayedEpisode
from vagentrl.event_loops import run_in_background
from vagentrl.policy import Policy, load_policy
from vagentrl.policy.load import find_checkpoint
from vagentrl.rollout.seeds import mix
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Trajectory

Factory = Callable[[], Environment]
OnEnd = Callable[[PlayedEpisode], None]


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
            on_end: Called with each episode when it has ended or failed, one call at a time.
        """

    @abstractmethod
    def identity(self) -> str:
        """A text with all settings that affect the replies; it must not contain a key."""

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
    """

    def __init__(
        self,
        source: str,
        sampling: Sampling | None = None,
        engine: Callable[[], Engine] | None = None,
        workers: Literal["thread", "process"] = "thread",
        max_workers: int = 256,
    ) -> None:
        self.source = source
        self.sampling = sampling
        self.workers: Literal["thread", "process"] = workers
        self.max_workers = max_workers
        self._engine = engine
        self._policy: Policy | None = None

    def identity(self) -> str:
        found = find_checkpoint(self.source)
        sampling = self.sampling or "its own sampling"
        return f"{found}{_stamp(Path(found))}, {sampling}"

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            engine = None if self._engine is None else self._engine()
            self._policy = load_policy(self.source, engine=engine)
        return self._policy

    def close(self) -> None:
        self._policy = None

    def play(
        self, name: str, environment: str, factory: Factory, starts: Sequence[Start], on_end: OnEnd
    ) -> None:
        ended = 0

        def record(sample: int, trajectory: Trajectory) -> None:
            nonlocal ended
            ended += 1
            on_end(PlayedEpisode.of(name, environment, sample, trajectory))

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
        max_workers: Episodes that are played at once.
    """

    def __init__(self, model: ChatModel, max_tokens: int = 1024, max_workers: int = 16) -> None:
        if max_tokens < 1 or max_workers < 1:
            raise ConfigError(
                f"max_tokens is {max_tokens} and max_workers {max_workers}; give at least 1"
            )
        self.model = model
        self.max_tokens = max_tokens
        self.max_workers = max_workers

    def identity(self) -> str:
        return f"{self.model.identity()}, {self.max_tokens} tokens"

    def play(
        self, name: str, environment: str, factory: Factory, starts: Sequence[Start], on_end: OnEnd
    ) -> None:
        with ThreadPoolExecutor(self.max_workers) as threads:
            futures = [
                threads.submit(self._episode, name, environment, factory, start) for start in starts
            ]
            try:
                for future in as_completed(futures):
                    on_end(future.result())
            finally:  # after an interrupt only the episodes in progress are waited for
                for future in futures:
                    future.cancel()

    def _episode(
        self, name: str, environment: str, factory: Factory, start: Start
    ) -> PlayedEpisode:
        turns: list[tuple[float, dict[str, float]]] = []
        replies: list[ChatReply] = []
        stop, error = "failed", None
        try:
            stop = self._converse(factory, start, turns, replies)
        except Exception as failure:  # boundary: the environment's code, and the endpoint
            told = str(failure) if isinstance(failure, VagentError) else where(failure)
            error = f"{type(failure).__name__}: {told}"
        names = sorted({key for _, metrics in turns for key in metrics} - {"success"})
        means = {}
        for key in names:
            values = [float(metrics[key]) for _, metrics in turns if key in metrics]
            means[key] = sum(values) / len(values)
        won = bool(turns) and turns[-1][1].get("success", 0.0) > 0
        return PlayedEpisode(
            policy=name,
            environment=environment,
            seed=start.seed,
            sample=start.sample,
            success=won and error is None,
            total_reward=float(sum(reward for reward, _ in turns)),
            turns=len(turns),
            stop=stop,
            reply_tokens=sum(reply.reply_tokens for reply in replies),
            cost=sum(reply.cost for reply in replies),
            metrics=means,
            error=error,
        )

    def _converse(
        self,
        factory: Factory,
        start: Start,
        turns: list[tuple[float, dict[str, float]]],
        replies: list[ChatReply],
    ) -> str:
        """Play an episode into `turns` and `replies`; returns how it ended."""
        game = factory()
        try:
            observation = game.reset(start.seed, mix(start.seed, 5, start.sample))
            messages = [{"role": "system", "content": game.system_prompt()}]
            for example in game.examples():
                messages.append(_message(example.observation))
                messages.append({"role": "assistant", "content": example.reply})
            while True:
                messages.append(_message(observation))
                replies.append(
                    run_in_background(self.model.converse(messages, max_tokens=self.max_tokens))
                )
                messages.append({"role": "assistant", "content": replies[-1].text})
                result = game.step(game.format.parse(replies[-1].text))
                turns.append((float(result.reward), dict(result.metrics)))
                if result.terminated or result.truncated:
                    return "terminated" if result.terminated else "truncated"
                observation = result.observation
        finally:
            game.close()


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
            next(images).save(png := BytesIO(), "PNG")
            url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
            yield {"type": "image_url", "image_url": {"url": url}}
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
