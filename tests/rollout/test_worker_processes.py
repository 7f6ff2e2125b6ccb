"""An environment that crashes, hangs, spins or takes all memory harms nobody but itself."""

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.test_workers import eventually, play
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, EnvError
from vagentrl.rollout import worker_kinds
from vagentrl.rollout.workers import WorkerPool, reset, step
from vagentrl.types import Observation, Reply, StepResult

STARTUP_S = 30.0


class Unruly(Environment):
    """Does what the reply says, and shows the number of its process, and of one that it started."""

    child: subprocess.Popen[bytes] | None = None

    def system_prompt(self) -> str:
        return "Behave."

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        return Observation(str(os.getpid()))

    def step(self, reply: Reply) -> StepResult:
        match reply.text:
            case "segfault":
                ctypes.string_at(0)
            case "spin":
                while True:
                    pass
            case "hold Python's lock":
                re.match("(a+)+$", "a" * 60 + "b")
            case "exit":
                sys.exit("no levels left")
            case "no picture":
                return StepResult(Observation("<image>"), 0.0)
            case "take memory":
                held = [bytearray(1 << 20) for _ in range(4096)]
                return StepResult(Observation(f"took {len(held)} MiB"), 0.0)
            case "take memory in one piece":
                return StepResult(Observation(f"took {len(bytearray(4 << 30))} bytes"), 0.0)
            case "start a process":
                self.child = subprocess.Popen(["sleep", "600"])
                return StepResult(Observation(str(self.child.pid)), 0.0)
            case "refuse to close":
                self.close = lambda: time.sleep(600)
            case "die later":
                signal.setitimer(signal.ITIMER_REAL, 0.05)  # SIGALRM ends the process
        return StepResult(Observation(str(os.getpid())), 1.0)


def pool(size: int = 2, **settings: Any) -> WorkerPool:
    return WorkerPool(Unruly, "maze", kind="process", size=size, timeout_s=STARTUP_S, **settings)


def ends(places: WorkerPool, *texts: str) -> list[str]:
    """The last observation of episodes that are played at once, or their error."""

    async def all_at_once() -> list[Any]:
        places.open()
        return await asyncio.gather(*(play(places, t, t) for t in texts), return_exceptions=True)

    return [
        str(end) if isinstance(end, EnvError) else end[-1] for end in asyncio.run(all_at_once())
    ]


def test_a_segfault_fails_its_episode_alone():
    places = pool()
    crashed, sound = ends(places, "segfault", "look")
    assert "environment 'maze' failed in step: its process ended by SIGSEGV" in crashed
    assert sound.isdigit()
    assert [end.isdigit() for end in ends(places, "look", "look")] == [True, True]
    places.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit", "SystemExit: no levels left"),
        ("no picture", "ShapeError: an observation has 1 <image> placeholders but 0 images"),
    ],
)
def test_what_ends_an_episode_is_told_with_its_line(text: str, message: str):
    places = pool()
    (end,) = ends(places, text)
    assert message in end and f"{__file__}:" in end
    places.close()


@pytest.mark.parametrize("text", ["take memory", "take memory in one piece"])
def test_an_environment_that_takes_all_memory_fails_its_episode_alone(text: str):
    places = pool(memory_gb=0.5)
    greedy, sound = ends(places, text, "look")
    assert "environment 'maze' failed in step: MemoryError" in greedy
    assert sound.isdigit()
    assert ends(places, "look")[0].isdigit()
    places.close()


def test_an_environment_that_spins_is_killed_and_its_core_is_free():
    places = pool()
    ends(places, "look", "look")  # the interpreters have started
    places.timeout_s = 1.0
    numbers: list[int] = []

    async def spin() -> None:
        places.open()
        async with places.reserve() as worker:
            _, _, observation, _ = await places.run(worker, reset, 0, 0)
            numbers.append(int(observation.text))
            await places.run(worker, step, Reply("spin"))

    with pytest.raises(EnvError, match="did not answer step within 1 s"):
        asyncio.run(spin())
    assert eventually(lambda: is_finished(numbers[0]))
    places.close()


def test_what_an_environment_started_ends_with_it():
    places = pool(size=1)
    (child,) = ends(places, "start a process")
    assert not is_finished(int(child))
    places.close()
    assert eventually(lambda: is_finished(int(child)))


def test_a_process_that_refuses_to_close_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_kinds, "CLOSE_S", 0.3)
    places = pool(size=1)
    (number,) = ends(places, "refuse to close")
    places.close()
    assert eventually(lambda: is_finished(int(number)))


def test_a_process_that_died_after_its_episode_is_replaced_before_the_next():
    places = pool(size=1)
    (number,) = ends(places, "die later")
    assert eventually(lambda: is_finished(int(number)))
    (other,) = ends(places, "look")
    assert other.isdigit() and other != number
    places.close()


def test_a_process_outlives_the_thread_that_asked_for_it():
    places = pool(size=1)
    asked: list[str] = []
    thread = threading.Thread(target=lambda: asked.extend(ends(places, "look")))
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert ends(places, "look") == asked
    places.close()


@pytest.mark.parametrize("text", ["spin", "hold Python's lock"])
def test_a_process_that_hangs_ends_with_a_trainer_that_was_killed(text: str):
    code = (
        "import os, sys\n"
        "from tests.rollout.test_worker_processes import pool, Reply\n"
        "from vagentrl.rollout.workers import reset, step\n"
        "worker = pool().acquire()\n"
        "print(worker.submit(reset, 0, 0).result(30)[2].text, flush=True)\n"
        f"worker.submit(step, Reply({text!r})).result(30)\n"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        number = int(trainer.stdout.readline())
        assert not is_finished(number)
        time.sleep(0.5)  # the step has begun
        trainer.kill()
    assert eventually(lambda: is_finished(number))


def is_finished(number: int) -> bool:
    """Whether a process has ended with all its threads, even if nobody has asked for its exit code.

    The first thread may be a zombie before the others; nobody is told of the end before the last.
    """
    try:
        state, *fields = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return True
    return state == "Z" and int(fields[16]) <= 1  # num_threads


@pytest.mark.parametrize(
    "settings", [{"kind": "thread", "memory_gb": 1.0}, {"kind": "process", "memory_gb": 0}]
)
def test_a_limit_of_memory_needs_a_process(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match="GiB of memory and workers of the kind"):
        WorkerPool(Unruly, "maze", **settings)
