"""Environments that leave things behind, change their process, return wrong values, or hang."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from tests.checkenv.toys import Corridor
from vagentrl.environment import Outcome
from vagentrl.types import Observation, Reply, StepResult

# -------------------------------------------------------------------------------------- resources


class RaisesOnNul(Corridor):
    def step(self, reply: Reply) -> StepResult:
        if "\x00" in reply.text:
            raise ValueError("embedded null byte")
        return super().step(reply)


class RemembersEpisodes(Corridor):
    played: ClassVar[list[list[int]]] = []

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        self.played.append(list(range(1000)))


class RemembersPictures(Corridor):
    """Pillow's pixels are not Python objects: only the process grows."""

    played: ClassVar[list[Image.Image]] = []

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        self.played.append(Image.linear_gradient("L").resize((600, 600)).convert("RGB"))


class KeepsTheLatest(Corridor):
    """A bounded cache whose entries differ in size: the later a seed came first, the larger."""

    known: ClassVar[dict[int, int]] = {}
    latest: ClassVar[deque[bytes]] = deque(maxlen=4)

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        number = self.known.setdefault(seed, len(self.known))
        self.latest.append(bytes(100_000 * number))


class AtOnce(Corridor):
    """Each episode ends with its first turn."""

    def _act(self, action: str) -> Outcome:
        return super()._act(action)._replace(done=True)


class KeepsSomeLarge(AtOnce):
    """A bounded cache that holds ever larger entries in the end, after a time without growth."""

    latest: ClassVar[deque[bytes]] = deque(maxlen=4)

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        self.latest.append(bytes(max(0, seed - 900) * 2500))


class RemembersSeeds(AtOnce):
    known: ClassVar[dict[int, bytes]] = {}

    def _start(self, seed: int, transition_seed: int) -> None:
        super()._start(seed, transition_seed)
        self.known[seed] = bytes(4000)


class LeavesAThread(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.stop = threading.Event()
        threading.Thread(target=self.stop.wait, args=(20,), daemon=True).start()


class LeavesAProcess(Corridor):
    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)
        return super().reset(seed, transition_seed)


class LeavesAFile(Corridor):
    files: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.files.append(open(os.devnull))  # noqa: SIM115 (the mistake to be found)


class ClosesOnce(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.file = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        os.close(self.file)


class LeavesAFileAReset(Corridor):
    """Closes the last of its files alone."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.file = os.open(os.devnull, os.O_RDONLY)
        return super().reset(seed, transition_seed)

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            os.close(self.file)
            del self.file


class LeavesAFolder(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()


# ------------------------------------------------------------------------- the rest of the process


class SeedsNumpy(Corridor):
    """Draws all at once, which looks clean unless two threads do it at the same time."""

    def _start(self, seed: int, transition_seed: int) -> None:
        np.random.seed(seed)
        self.luck = np.random.random()
        super()._start(seed, transition_seed)


class DrawsFromRandom(Corridor):
    def _act(self, action: str) -> Outcome:
        random.random()
        return super()._act(action)


class ChangesFolder(Corridor):
    def _start(self, seed: int, transition_seed: int) -> None:
        os.chdir("/")
        super()._start(seed, transition_seed)


class ChangesVariables(Corridor):
    def _start(self, seed: int, transition_seed: int) -> None:
        os.environ["PATH"] = f"{os.environ['PATH']}:/levels"
        super()._start(seed, transition_seed)


class IgnoresInterrupts(Corridor):
    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGINT, signal.SIG_IGN)


# -------------------------------------------------------------------------------- the wrong values


class ListAsPlan(Corridor):
    def oracle(self) -> Any:
        return list(super().oracle() or ())


class TextAsActions(Corridor):
    def random_actions(self, rng: random.Random) -> Any:
        return "Left"


class DictAsState(Corridor):
    def state(self) -> Any:
        return {"you": self.place}


class ArrayAsFrame(Corridor):
    def frame(self) -> Any:
        return np.zeros((8, 8, 3), dtype=np.uint8)


class NumberedMetrics(Corridor):
    def step(self, reply: Reply) -> StepResult:
        return replace(super().step(reply), metrics={3: 1.0})  # pyright: ignore


class MetricNan(Corridor):
    def step(self, reply: Reply) -> StepResult:
        return replace(super().step(reply), metrics={"speed": float("nan")})


class NoPicture(Corridor):
    def _observe(self) -> Observation:
        return Observation("<image>")


class HugeReward(Corridor):
    def _act(self, action: str) -> Outcome:
        return super()._act(action)._replace(reward=1e39)


# ------------------------------------------------------------------------------- crashes and hangs


class Segfaults(Corridor):
    def _act(self, action: str) -> Outcome:
        ctypes.string_at(0)
        return super()._act(action)


class Hangs(Corridor):
    def oracle(self) -> tuple[str, ...] | None:
        time.sleep(3600)
        return None


class HangsAtOnce(Corridor):
    def _start(self, seed: int, transition_seed: int) -> None:
        time.sleep(3600)


class Exits(Corridor):
    def _observe(self) -> Observation:
        os._exit(3)


class NeedsAPath(Corridor):
    def __init__(self, path: str, width: int) -> None:
        super().__init__()


class CannotBeMade(Corridor):
    def __init__(self) -> None:
        raise FileNotFoundError("levels.json")
