"""Environments that are hard on whoever plays them."""

import time
from typing import Any

from vagentrl.environment import ActionEnvironment, Environment, Outcome
from vagentrl.formats import FreeThink, PlainText, ReplyFormat, WorldModeling
from vagentrl.types import Observation, Reply, State, StepResult


class Counter(Environment):
    """Counts replies, without an end. (`tests.toy` loads torch, which takes a process long.)"""

    def __init__(self, format: ReplyFormat | None = None) -> None:
        super().__init__(format or PlainText())

    def system_prompt(self) -> str:
        return "Count."

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.seed, self.turns = seed, 0
        return self.observe()

    def step(self, reply: Reply) -> StepResult:
        self.turns += 1
        return StepResult(self.observe(), 0.5, truncated=self.turns == 9)

    def observe(self) -> Observation:
        return Observation(f"reply {self.turns}")


class Walk(ActionEnvironment):
    """Three steps to the right; knows the way."""

    def __init__(self, format: ReplyFormat | None = None, **settings: Any) -> None:
        super().__init__(["Left", "Right"], format, **settings)

    def _start(self, seed: int, transition_seed: int) -> None:
        self.place = 0

    def _act(self, action: str) -> Outcome:
        self.place += 1 if action == "Right" else -1
        return Outcome(1.0, done=self.place == 3, success=self.place == 3)

    def _observe(self) -> Observation:
        return Observation(f"at {self.place}")

    def system_prompt(self) -> str:
        return "Go right."

    def oracle(self) -> tuple[str, ...]:
        return ("Right",) * (3 - self.place)

    def state(self) -> State:
        return State(str(self.place), str(self.place), str(self.place))


class Breaks(Counter):
    """Does what a reply says: raises, hangs, ends its process, or answers with hostile text."""

    def step(self, reply: Reply) -> StepResult:
        said = reply.actions[0] if reply.actions else ""
        if said == "raise":
            raise RuntimeError("the \x1b[31mboard\u202e is gone")
        if said == "hang":
            time.sleep(60)
        if said == "exit":
            raise SystemExit(3)
        return StepResult(Observation("\x1b[2Jcleared\u202e <b>x</b> \ud800"), 0.5)

    def oracle(self) -> tuple[str, ...] | None:
        raise KeyError("no oracle\x07")


class Cannot(Counter):
    """Cannot begin with every second training seed."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        if seed % 4 == 2:
            raise RuntimeError("no such level")
        return super().reset(seed, transition_seed)


class Drifts(Counter):
    """Shows another text whenever it is made."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Drifts.made += 1

    def observe(self) -> Observation:
        return Observation(f"world {self.made if self.turns else 0}")


def thinking() -> Walk:
    return Walk(FreeThink(), actions_per_turn=2)


def claiming() -> Walk:
    return Walk(WorldModeling("structured"), actions_per_turn=2)
