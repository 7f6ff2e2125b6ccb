"""A sound environment, and ones that each make one mistake."""

from __future__ import annotations

import ctypes
import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from vagentrl.environment import ActionEnvironment, Outcome, split_of, split_of_state
from vagentrl.formats import NoThink
from vagentrl.types import Observation, Reply, State, StepResult

CELLS = 40


class Corridor(ActionEnvironment):
    """Walk along a corridor to the flag. Nothing is wrong with it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(("Left", "Right"), format=NoThink(), turn_limit=CELLS, **settings)

    def system_prompt(self) -> str:
        return f"Walk to the flag by Left and Right. {self.format.instructions(1)}"

    def _start(self, seed: int, transition_seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.place, self.flag = rng.permutation(CELLS)[:2].tolist()
        while split_of_state(f"{self.place} {self.flag}") != split_of(seed):
            self.place, self.flag = rng.permutation(CELLS)[:2].tolist()

    def _act(self, action: str) -> Outcome:
        before = self.place
        self.place = min(max(self.place + (1 if action == "Right" else -1), 0), CELLS - 1)
        arrived = self.place == self.flag
        return Outcome(float(arrived), arrived, arrived, self.place != before)

    def _observe(self) -> Observation:
        return Observation(f"You are at {self.place}, the flag is at {self.flag}.")

    def state(self) -> State | None:
        cells = ["_"] * CELLS
        cells[self.flag] = "G"
        cells[self.place] = "P"
        return State(
            f"you are at {self.place}; the flag is at {self.flag}",
            json.dumps({"you": self.place, "flag": self.flag}),
            "".join(cells),
        )

    def oracle(self) -> tuple[str, ...] | None:
        steps = self.flag - self.place
        return ("Right" if steps > 0 else "Left",) * abs(steps)

    def frame(self) -> Image.Image | None:
        pixels = np.zeros((8, CELLS, 3), dtype=np.uint8)
        pixels[:, self.flag] = (255, 0, 0)
        pixels[:, self.place] = (0, 0, 255)
        return Image.fromarray(pixels)


# ------------------------------------------------------------------------------------ the contract


class ChangingPrompt(Corridor):
    def system_prompt(self) -> str:
        return f"The flag is at {self.flag}."


class Endless(Corridor):
    def step(self, reply: Reply) -> StepResult:
        self._turns = 0
        return StepResult(self._observe(), 0.0)


class EndsTwice(Corridor):
    def step(self, reply: Reply) -> StepResult:
        return StepResult(self._observe(), 0.0, terminated=True, truncated=True)


class EndsTwiceInSuccess(Corridor):
    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        return replace(result, truncated=result.terminated or result.truncated)


class HalfSuccess(Corridor):
    def step(self, reply: Reply) -> StepResult:
        return StepResult(self._observe(), 0.0, terminated=True, metrics={"success": 0.5})


class SeparatorInAction(Corridor):
    def random_actions(self, rng: random.Random) -> tuple[str, ...]:
        return ("search[red, green]",)


class AnswersAfterTheEnd(Corridor):
    def step(self, reply: Reply) -> StepResult:
        return super().step(reply) if not self._over else StepResult(self._observe(), 0.0)


class AnswersBeforeReset(Corridor):
    def step(self, reply: Reply) -> StepResult:
        if not self._turns and self._over:
            return StepResult(Observation("?"), 0.0)
        return super().step(reply)


class KeepsItsPlace(Corridor):
    def _start(self, seed: int, transition_seed: int) -> None:
        before = vars(self).get("place")
        super()._start(seed, transition_seed)
        if before is not None:
            self.place = before


# ----------------------------------------------------------------------------------- repeatability


class HashSeeded(Corridor):
    def _observe(self) -> Observation:
        return Observation(f"{super()._observe().text} {hash('flag') % 1000}")


class SeldomHashSeeded(HashSeeded):
    """Depends on the hash seed in a few of its states, with the flag in one of four cells."""

    def _observe(self) -> Observation:
        return super()._observe() if self.flag in (15, 16, 17, 18) else Corridor._observe(self)


class OneGeneratorForAll(Corridor):
    """Draws the luck from a generator of the instance that reset does not set up anew."""

    def __init__(self) -> None:
        super().__init__()
        self.luck = np.random.default_rng(0)

    def _act(self, action: str) -> Outcome:
        return super()._act(action if self.luck.random() < 0.5 else "Left")


class GlobalGenerator(Corridor):
    """Repeats alone, but shares its generator with other environments of the process."""

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        random.seed(seed)

    def _act(self, action: str) -> Outcome:
        return super()._act(action if random.random() < 0.5 else "Left")


class StartsByLuck(Corridor):
    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed + 4 * (transition_seed % 2), transition_seed)


# ------------------------------------------------------------------------------ states and pictures


class OneStart(Corridor):
    def _start(self, seed: int, transition_seed: int) -> None:
        self.place, self.flag = 3, 7


class SharedStarts(Corridor):
    def _start(self, seed: int, transition_seed: int) -> None:
        self.place, self.flag = np.random.default_rng(seed).permutation(CELLS)[:2].tolist()


class NamelessStates(Corridor):
    def initial_state(self, seed: int) -> Any:
        return object()


class NotJson(Corridor):
    def state(self) -> State | None:
        return State("here", str({"you": self.place}), "P")


class FrozenState(Corridor):
    def state(self) -> State | None:
        return State(f"the flag is at {self.flag}", json.dumps(self.flag), str(self.flag))


class StateNowAndThen(Corridor):
    def state(self) -> State | None:
        return super().state() if self.place % 2 else None


class StateWithTags(Corridor):
    def state(self) -> State | None:
        return State(f"<answer>{self.place}</answer>", "{}", f"{self.place}")


class NamesAFieldTwice(Corridor):
    def state(self) -> State | None:
        return State(f"{self.place}", f'{{"you":{self.place},"you":1}}', f"{self.place}")


class GreyPicture(Corridor):
    def _observe(self) -> Observation:
        return Observation("<image>", (Image.linear_gradient("L"),))


class BlackPicture(Corridor):
    def _observe(self) -> Observation:
        return Observation("<image>", (Image.new("RGB", (64, 64)),))


class SamePicture(Corridor):
    def _observe(self) -> Observation:
        return Observation("<image>", (Image.linear_gradient("L").convert("RGB"),))


class OneCanvas(Corridor):
    """Shows one picture, which it paints over in every turn."""

    def __init__(self) -> None:
        super().__init__()
        self.canvas = Image.new("RGB", (CELLS, 8))

    def _observe(self) -> Observation:
        frame = self.frame()
        assert frame is not None
        self.canvas.paste(frame)
        return Observation("<image>", (self.canvas,))


class OldFrame(Corridor):
    def frame(self) -> Image.Image | None:
        return Image.linear_gradient("L").convert("RGB")


# ------------------------------------------------------------------------------------------- skill


class WrongOracle(Corridor):
    def oracle(self) -> tuple[str, ...] | None:
        return ("Left", "Right")


class OracleTooLate(Corridor):
    def oracle(self) -> tuple[str, ...] | None:
        return ("Left", "Right") * CELLS


class Slippery(Corridor):
    """Luck moves the walker, so that plans must be made again. Nothing is wrong with that."""

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        self.luck = np.random.default_rng((seed, transition_seed))

    def _act(self, action: str) -> Outcome:
        slips = self.luck.random() < 0.2
        return super()._act({"Left": "Right", "Right": "Left"}[action] if slips else action)


class SameWay(Corridor):
    """Every episode is won by the same steps, whatever it shows."""

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        self.left = ["Right", "Left", "Left", "Right"]

    def _act(self, action: str) -> Outcome:
        if action == self.left[0]:
            self.left.pop(0)
        return Outcome(float(not self.left), not self.left, not self.left)

    def oracle(self) -> tuple[str, ...] | None:
        return tuple(self.left)


class AlwaysRight(Corridor):
    """One reply solves every episode."""

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        self.place, self.flag = min(self.place, self.flag), max(self.place, self.flag)


# --------------------------------------------------------------------------------- hostile replies


class Echo(Corridor):
    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        return StepResult(Observation(f"You said: {reply.text}"), result.reward, result.terminated)


class BoundedEcho(Corridor):
    """Quotes with image placeholders taken out, but at any length."""

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        said = reply.text.replace("<", "(")
        return StepResult(Observation(f"You said: {said}"), result.reward, result.terminated)


class CrashesOnNul(Corridor):
    def step(self, reply: Reply) -> StepResult:
        if reply.text == "\x00":
            ctypes.string_at(0)
        return super().step(reply)
