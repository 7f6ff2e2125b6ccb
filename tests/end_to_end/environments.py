"""Toy environments that fail or have unusual rewards and states."""

import time
from dataclasses import replace

from tests.toy import Countdown
from vagentrl.environment import Split
from vagentrl.types import Observation, Reply, StepResult


class Raising(Countdown):
    """Raises an error in the middle of some episodes."""

    def step(self, reply: Reply) -> StepResult:
        if self.luck % 2:
            raise RuntimeError("the pipe burst")
        return super().step(reply)


class Hanging(Countdown):
    """Hangs in `reset` in some episodes."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        if transition_seed % 2:
            time.sleep(3600)
        return super().reset(seed, transition_seed)


class AlwaysRaising(Countdown):
    """Raises an error in every `reset`."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        raise RuntimeError("no water")


class Lucky(Countdown):
    """Gives random rewards from some initial states and none from others; two validation states."""

    def initial_state(self, seed: int) -> int:
        return seed % 8

    def step(self, reply: Reply) -> StepResult:
        return replace(super().step(reply), reward=float(self.luck * (self.left > 2)))


class HalfSeen(Countdown):
    """Shows pictures in two of three episodes."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.images = bool(seed % 3)
        return super().reset(seed, transition_seed)


class Told(Countdown):
    """Reports its initial state, which is the same for all validation seeds."""

    def initial_state(self, seed: int) -> int:
        return seed % 4


class Unrepeatable(Countdown):
    """Says that its episodes cannot be replayed."""

    @property
    def replays(self) -> bool:
        return False


class Numbered(Lucky):
    """Has five initial states to train on, with numbers from 0."""

    def start_count(self, split: Split) -> int | None:
        return 5 if split == "train" else None
