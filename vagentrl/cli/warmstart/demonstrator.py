"""A noisy demonstrator, and what it says and does in an episode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from vagentrl.contexts import Context
from vagentrl.environment import ActionEnvironment, Environment, seed_of
from vagentrl.errors import ConfigError
from vagentrl.hints import HintedEnvironment
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import (
    IMAGE_PLACEHOLDER,
    Example,
    Observation,
    Reply,
    State,
    StepResult,
    Trajectory,
    Turn,
)


@dataclass(frozen=True)
class Demonstrator:
    """Says the true state, and acts by the oracle or at random.

    Args:
        noise: Share of turns in which the action is drawn at random from `actions`.
        actions: The actions to draw from; empty for those that are possible in the environment's
            state (`Environment.random_actions`), which may be others in every turn.
        claim_noise: Share of claims that are about the state one random action later instead.
        obeys: Share of the turns with a hint in which the action is the one that the hint names.
    """

    noise: float
    actions: tuple[str, ...]
    claim_noise: float = 0.0
    obeys: float = 0.0

    def __post_init__(self) -> None:
        shares = {"noise": self.noise, "claim_noise": self.claim_noise, "obeys": self.obeys}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} is {share}; it is a share between 0 and 1")

    def reply(self, environment: Environment, rng: np.random.Generator) -> str:
        """What the demonstrator says and does in the environment's state."""
        plan = environment.oracle()
        hint = environment.hint if isinstance(environment, HintedEnvironment) else None
        if hint is not None and hint.action is not None and rng.random() < self.obeys:
            plan = (hint.action,)
        elif not plan or rng.random() < self.noise:
            plan = (self._random_action(environment, rng),)
        observation = self._seen(environment, rng)
        prediction = None
        if "prediction" in environment.format.claims:
            ahead = copy.deepcopy(environment)
            result = ahead.step(Reply("", actions=plan[:1]))
            over = result.terminated or result.truncated
            prediction = ahead.state() if over else self._seen(ahead, rng)
        return environment.format.write(plan[:1], observation=observation, prediction=prediction)

    def _seen(self, environment: Environment, rng: np.random.Generator) -> State | None:
        """The state, or the one that a random action would lead to."""
        if not self.claim_noise or rng.random() >= self.claim_noise:
            return environment.state()
        later = copy.deepcopy(environment)
        later.step(Reply("", actions=(self._random_action(environment, rng),)))
        return later.state()

    def _random_action(self, environment: Environment, rng: np.random.Generator) -> str:
        actions = self.actions
        if not actions and isinstance(environment, ActionEnvironment):
            # Not random_actions: the shipped models' recipes need these very draws.
            actions = environment.action_names
        if actions:
            return actions[rng.integers(len(actions))]
        drawn = environment.random_actions(Random(int(rng.integers(2**32))))
        if drawn:
            return drawn[0]
        raise ConfigError(
            f"actions is empty, but {type(environment).__name__} names no actions to draw from; "
            "give some, or write its random_actions"
        )


@dataclass(frozen=True)
class Demonstration:
    """One demonstrated episode in words, not yet in tokens."""

    system_prompt: str
    observations: tuple[Observation, ...]
    replies: tuple[str, ...]
    examples: tuple[Example, ...] = ()


def demonstrate(
    environment: Environment, demonstrator: Demonstrator, seed: int, turns: int | None = None
) -> Demonstration:
    """Play one episode, or its first turns, with the demonstrator in the agent's seat."""
    rng = np.random.default_rng((seed, 1))  # not the stream that the environment draws from
    observations, replies = [environment.reset(seed)], []
    system_prompt, examples = environment.system_prompt(), environment.examples()
    while True:
        replies.append(demonstrator.reply(environment, rng))
        result: StepResult = environment.step(environment.format.parse(replies[-1]))
        if result.terminated or result.truncated or len(replies) == turns:
            return Demonstration(system_prompt, tuple(observations), tuple(replies), examples)
        observations.append(result.observation)


def to_trajectory(
    demonstration: Demonstration, renderer: Renderer, context: Context, context_length: int
) -> Trajectory:
    """Demonstration as a trajectory, cut where the context is full."""
    turns: list[Turn] = []
    conversation = Conversation(
        renderer, context, demonstration.system_prompt, demonstration.examples
    )
    for observation, text in zip(demonstration.observations, demonstration.replies, strict=True):
        prompt = conversation.ask(observation)
        reply_ids = (*renderer.encode_text(text), renderer.end_of_turn)
        conversation.reply(reply_ids)
        if len(conversation.ids) + 1 > context_length:
            break
        zeros = (0.0,) * len(reply_ids)
        turns.append(Turn(observation, prompt, reply_ids, zeros, Reply(text), 0.0, "stop"))
    return Trajectory("demonstration", 0, 0, tuple(turns), "terminated")


def demonstrated_texts(
    environment: Environment, demonstrator: Demonstrator, episodes: int
) -> Iterator[str]:
    """What the model will read and write, as the tokenizer will see it."""
    for index in range(episodes):
        demonstration = demonstrate(environment, demonstrator, seed_of("train", index))
        yield f"system\n{demonstration.system_prompt}"
        for observation, reply in zip(
            demonstration.observations, demonstration.replies, strict=True
        ):
            text = observation.text.replace(IMAGE_PLACEHOLDER, "")
            yield f"user\n{text}\n{observation.hint}" if observation.hint else f"user\n{text}"
            yield "assistant\n"
            yield reply
