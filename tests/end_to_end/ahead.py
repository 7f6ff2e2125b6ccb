"""Parts that disturb the thread that plays ahead, for test_ahead."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.toy import Countdown
from vagentrl.callbacks import AgentCallback
from vagentrl.types import Reply, StepResult, Turn


class IllOnRank1(AgentCallback):
    """Raises an error on rank 1 at the end of a turn that is played ahead."""

    ahead = False

    def on_report(self, agent: Any, report: dict[str, float]) -> None:
        self.ahead = True  # the first iteration's episodes have ended

    def on_turn_end(self, agent: Any, turn: Turn, *, training: bool) -> None:
        if self.ahead and os.environ["LOCAL_RANK"] == "1":
            raise RuntimeError("the player of rank 1 is ill")


class Dawdling(Countdown):
    """Takes minutes for an episode after the first iteration, and leaves a file when it begins."""

    def at_iteration(self, iteration: int) -> None:
        self.dawdles = iteration > 0

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        if not self.dawdles:
            return result
        Path(f"began_{os.environ['LOCAL_RANK']}").touch()
        time.sleep(3)
        return replace(result, terminated=False, truncated=False)  # until the context is full
