"""Where an environment is played while it is checked: an object in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TypeVar

from PIL.Image import Image

from vagentrl.checkenv.effort import Effort
from vagentrl.claims.judge import Judge
from vagentrl.environment import ActionEnvironment, Environment
from vagentrl.errors import ConfigError, EnvError
from vagentrl.rollout import workers
from vagentrl.rollout.workers import EnvironmentFactory, state_of
from vagentrl.types import Observation, Reply, StepResult

MOST_TURNS = 20_000
"""Turns after which an episode of random play counts as one that never ends."""

Item = TypeVar("Item")


class Bench:
    """Makes environments, and plays them as the trainer does.

    Args:
        factory: Makes an environment.
        effort: How much to play.
        judge: Compares claims with the true state exactly; None leaves claims unchecked.
    """

    def __init__(
        self, factory: EnvironmentFactory, effort: Effort, judge: Judge | None = None
    ) -> None:
        self.factory = factory
        self.effort = effort
        self.judge = judge
        self._environment: Environment | None = None

    @property
    def environment(self) -> Environment:
        """An environment that all checks share; whoever uses it resets it first."""
        if self._environment is None:
            self._environment = self.make()
        return self._environment

    def make(self) -> Environment:
        """A new environment, for a check that needs its own; the check closes it."""
        return workers.make(self.factory, "under check")

    def within_time(self, items: Iterable[Item], share: float = 1.0) -> Iterator[Item]:
        """The items, for as long as a share of a check's time lasts; at least the first one."""
        deadline = time.monotonic() + share * self.effort.seconds
        for item in items:
            yield item
            if time.monotonic() > deadline:
                return

    def close(self) -> None:
        """Close the shared environment."""
        if self._environment is not None:
            self._environment.close()


def open_bench(factory: EnvironmentFactory, effort: Effort, judge: Judge | None) -> Bench:
    """A bench in a process of its own, in which whatever libraries print is dropped."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return Bench(factory, effort, judge)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment, also for processes that start in the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def reset(environment: Environment, seed: int, transition_seed: int = 0) -> Observation:
    """Reset as the trainer does, and check what is returned."""
    return workers.reset(environment, seed, transition_seed).observation


def step(environment: Environment, reply: Reply) -> StepResult:
    """Step as the trainer does, and check what is returned."""
    return workers.step(environment, reply)[0]


def actions_per_turn(environment: Environment) -> int:
    """How many actions of an oracle's plan are played in one reply."""
    return environment.actions_per_turn if isinstance(environment, ActionEnvironment) else 1


def reply_with(environment: Environment, actions: tuple[str, ...]) -> Reply:
    """The well-formed reply with these actions and true claims, if its format can carry them."""
    state = state_of(environment) if environment.format.claims else None
    try:
        text = environment.format.write(actions, observation=state, prediction=state)
    except ConfigError:  # `check_contract` reports it
        return Reply("", actions=actions)
    return environment.format(text)


def draw_actions(environment: Environment, rng: Random) -> tuple[str, ...]:
    """Random actions, or where the environment draws none the oracle's next; none if neither."""
    drawn = random_actions(environment, rng)
    if drawn is not None:
        return drawn
    return (plan_of(environment) or ())[: actions_per_turn(environment)]


def random_actions(environment: Environment, rng: Random) -> tuple[str, ...] | None:
    """Actions that the environment draws at random, or None.

    Raises:
        EnvError: If it gives anything else.
    """
    return _actions(environment, "random_actions", environment.random_actions(rng))


def plan_of(environment: Environment) -> tuple[str, ...] | None:
    """The oracle's plan, or None.

    Raises:
        EnvError: If it gives anything else.
    """
    return _actions(environment, "oracle", environment.oracle())


def _actions(environment: Environment, method: str, given: object) -> tuple[str, ...] | None:
    if given is None or (isinstance(given, tuple) and all(isinstance(each, str) for each in given)):
        return given
    raise EnvError.returned(environment, method, given, "return a tuple of strings, or None")


def frame_of(environment: Environment) -> Image | None:
    """The picture for people, or None.

    Raises:
        EnvError: If the environment gives anything else.
    """
    frame = environment.frame()
    if frame is None or isinstance(frame, Image):
        return frame
    raise EnvError.returned(environment, "frame", frame, "return a PIL image, or None")


def play_at_random(
    environment: Environment, seed: int, rng: Random, transition_seed: int = 0
) -> Iterator[StepResult]:
    """Play one episode at random; yields every result."""
    reset(environment, seed, transition_seed)
    for _ in range(MOST_TURNS):
        result = step(environment, reply_with(environment, draw_actions(environment, rng)))
        yield result
        if result.terminated or result.truncated:
            return
    raise EnvError(
        f"an episode of random play has not ended after {MOST_TURNS} turns (seed {seed}); give the "
        "environment a limit of turns, and set truncated when it is reached"
    )
