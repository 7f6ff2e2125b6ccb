"""Toy tasks that misbehave."""

import time
from dataclasses import replace

from tests.toy import Countdown
from vagentrl.types import Observation, Reply, StepResult


class Raising(Countdown):
    """Breaks in the middle of some episodes."""

    def step(self, reply: Reply) -> StepResult:
        if self.luck % 2:
            raise RuntimeError("the pipe burst")
        return super().step(reply)


class Hanging(Countdown):
    """Never answers at the start of some episodes."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        if transition_seed % 2:
            time.sleep(3600)
        return super().reset(seed, transition_seed)


class AlwaysRaising(Countdown):
    """Breaks at once."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        raise RuntimeError("no water")


class Lucky(Countdown):
    """Pays by luck when much is left, and nobody anything otherwise; has two validation states."""

    def initial_state(self, seed: int) -> int:
        return seed % 8

    def step(self, reply: Reply) -> StepResult:
        return replace(super().step(reply), reward=float(self.luck * (self.left > 2)))


class Told(Countdown):
    """Tells its initial state; those of all validation seeds are the same."""

    def initial_state(self, seed: int) -> int:
        return seed % 4
