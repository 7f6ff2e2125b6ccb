"""Several environments as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from vagentrl.curricula import Curriculum
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.schedules import Schedule, share_at, shares_of
from vagentrl.types import Example, Observation, Reply, State, StepResult

if TYPE_CHECKING:
    from PIL.Image import Image


class Mixture(Environment):
    """Several environments, of which every episode plays one.

    As ``data.env`` its environments share the groups of every batch by their weights. Each has
    metrics of its own, and a group plays one of them. Anywhere else the seed decides which one an
    episode plays, by the same weights.

    Args:
        worlds: The environments, by name.
        weights: How large a share of the groups each gets, relative to the others; those that are
            not named have 1. A schedule changes a weight over the iterations.
        curriculum: Draws environments, and starts of those that number them, more or less often by
            how they went in training.

    Raises:
        ConfigError: When a name or a weight cannot be used.
    """

    def __init__(
        self,
        worlds: dict[str, Callable[[], Environment]],
        weights: dict[str, float | Schedule] | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        super().__init__()
        if not worlds:
            raise ConfigError("Mixture.worlds names no environment; give one or more by name")
        for name in worlds:
            if not name or "/" in name or name == "train":
                raise ConfigError(
                    f"Mixture.worlds has an environment named {name!r}; its name becomes a part of "
                    "the names of metrics, so give one without a slash that is not empty, and not "
                    "'train', which stands for a single environment"
                )
        self.worlds = dict(worlds)
        self.weights = dict.fromkeys(worlds, 1.0) | (weights or {})
        self.curriculum = curriculum
        self._check_weights()
        self._iteration = 0
        self._playing: Environment | None = None

    def _check_weights(self) -> None:
        if unknown := [name for name in self.weights if name not in self.worlds]:
            raise ConfigError(
                f"Mixture.weights names {', '.join(unknown)}, but the worlds are "
                f"{', '.join(self.worlds)}"
            )
        for name, weight in self.weights.items():
            if not isinstance(weight, Schedule) and not 0 <= weight < math.inf:
                raise ConfigError(f"Mixture.weights[{name!r}] is {weight}; give 0 or more")
        if not any(isinstance(weight, Schedule) or weight > 0 for weight in self.weights.values()):
            raise ConfigError("all weights of the Mixture are 0; give at least one above 0")

    # ------------------------------------------------------------------------- as one environment

    @cached_property
    def _made(self) -> dict[str, Environment]:
        return {name: make() for name, make in self.worlds.items()}

    @property
    def _current(self) -> Environment:
        return self._playing or next(iter(self._made.values()))

    @property
    def replays(self) -> bool:
        return all(environment.replays for environment in self._made.values())

    @property
    def waits_s(self) -> float:
        return max(environment.waits_s for environment in self._made.values())

    @property
    def prompt_varies(self) -> bool:
        return True

    def examples(self) -> tuple[Example, ...]:
        return self._current.examples()

    def at_iteration(self, iteration: int) -> None:
        self._iteration = iteration

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self._playing = self._made[self._choose(seed)]
        self._playing.at_iteration(self._iteration)
        observation = self._playing.reset(seed, transition_seed)
        self.format = self._playing.format
        return observation

    def initial_state(self, seed: int) -> Hashable | None:
        name = self._choose(seed)
        state = self._made[name].initial_state(seed)
        return None if state is None else (name, state)

    def _choose(self, seed: int) -> str:
        """The name of the environment that an episode with this seed plays."""
        weights = {name: share_at(self.weights[name], self._iteration) for name in self.worlds}
        shares = shares_of(weights, self._iteration)
        rng = np.random.default_rng((seed, 12))
        return list(shares)[int(rng.choice(len(shares), p=list(shares.values())))]

    def system_prompt(self) -> str:
        return self._current.system_prompt()

    def step(self, reply: Reply) -> StepResult:
        return self._current.step(reply)

    def state(self) -> State | None:
        return self._current.state()

    def rubric(self) -> str:
        return self._current.rubric()

    def oracle(self) -> tuple[str, ...] | None:
        return self._current.oracle()

    def random_actions(self, rng: Random) -> tuple[str, ...] | None:
        return self._current.random_actions(rng)

    def frame(self) -> Image | None:
        return self._current.frame()

    def close(self) -> None:
        for environment in self._made.values():
            environment.close()


def mixture_of(factory: object) -> Mixture | None:
    """The mixture that a factory makes; None if it makes a single environment.

    A class or a `functools.partial` of one says what it makes, as do the factories of a
    configuration; another function is taken to make a single environment.
    """
    named = (factory.func, *factory.args) if isinstance(factory, partial) else (factory,)
    if not any(isinstance(part, type) and issubclass(part, Mixture) for part in named):
        return None
    made: Any = factory
    return made()
