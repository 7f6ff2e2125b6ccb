import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pytest

from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import WorldModeling
from vagentrl.rollout.workers import WorkerPool, reset, step
from vagentrl.types import Claim, Observation, Reply, State, StepResult


class Obedient(Environment):
    """Raises an error, hangs or exits, as its seed or the reply says."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        if broken:
            raise ValueError("no such level")

    def system_prompt(self) -> str:
        return f"I live in process {os.getpid()}"

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        if seed < 0:
            raise IndexError("a negative seed")
        return Observation(f"{seed}, {transition_seed}")

    def step(self, reply: Reply) -> Any:
        match reply.text:
            case "raise":
                raise KeyError("door")
            case "stop iteration":
                return next(iter(()))
            case "exit":
                sys.exit("enough")
            case "die":
                os._exit(3)
            case "hang":
                time.sleep(60)
            case "nothing":
                return None
            case "nan":
                return StepResult(Observation("?"), float("nan"))
        return StepResult(Observation(reply.text), 1.0)


async def play(pool: WorkerPool, *replies: str, seed: int = 0) -> list[str]:
    async with pool.reserve() as worker:
        _, _, observation, _ = await pool.run(worker, reset, seed, 7)
        told = [observation.text]
        for text in replies:
            result, _ = await pool.run(worker, step, Reply(text))
            told.append(result.observation.text)
        return told


def play_alone(pool: WorkerPool, *replies: str, seed: int = 0) -> list[str]:
    """Run in a new event loop, as every collection does."""

    async def alone() -> list[str]:
        pool.open()
        return await play(pool, *replies, seed=seed)

    return asyncio.run(alone())


def pool(kind: Literal["thread", "process"] = "thread", **settings: Any) -> WorkerPool:
    return WorkerPool(Obedient, "maze", kind=kind, **settings)


def test_an_episode_is_played_in_a_thread():
    assert play_alone(pool(), "a", "b", seed=3) == ["3, 7", "a", "b"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("raise", r"environment 'maze' failed in step: KeyError: 'door' \(.*test_workers.py:\d+\)"),
        ("stop iteration", r"environment 'maze' failed in step: StopIteration"),
        ("exit", r"environment 'maze' failed in step: SystemExit: enough"),
        (
            "nothing",
            r"environment 'maze' failed in step: Obedient.step returned None; return StepResult",
        ),
        ("nan", r"environment 'maze' failed in step: the reward is nan"),
    ],
)
def test_what_goes_wrong_in_step_is_an_env_error(reply: str, message: str):
    with pytest.raises(EnvError, match=message):
        play_alone(pool(timeout_s=5), reply)


def test_what_goes_wrong_in_reset_is_an_env_error():
    with pytest.raises(
        EnvError, match="environment 'maze' failed in reset: IndexError: a negative"
    ):
        play_alone(pool(), seed=-1)


def test_what_goes_wrong_in_the_constructor_is_an_env_error():
    broken = WorkerPool(partial(Obedient, broken=True), "maze")
    with pytest.raises(EnvError, match="'maze' failed in reset: ValueError: no such level"):
        play_alone(broken)


def test_the_environments_own_error_stays_in_the_chain():
    with pytest.raises(EnvError) as raised:
        play_alone(pool(), "raise")
    causes = [raised.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)  # pyright: ignore
    assert isinstance(causes[-1], KeyError)


def test_an_environment_that_hangs_is_an_env_error_and_the_pool_goes_on():
    places = pool(size=1, timeout_s=0.5)
    started = time.perf_counter()
    with pytest.raises(EnvError, match=r"'maze' did not answer step within 0.5 s"):
        play_alone(places, "hang")
    assert time.perf_counter() - started < 5
    assert play_alone(places, "a") == ["0, 7", "a"]


def test_a_hanging_environment_does_not_keep_the_program_from_ending():
    code = (
        "from tests.rollout.test_workers import play_alone, pool\n"
        "try: play_alone(pool(timeout_s=0.5), 'hang')\n"
        "except Exception as error: print(type(error).__name__)"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=30
    )
    assert (ended.stdout, ended.returncode) == ("EnvError\n", 0), ended.stderr


@dataclass
class Counted:
    """Makes environments; counts them, and those in use at the same time."""

    made: list[Environment] = field(default_factory=list)
    closed: list[Environment] = field(default_factory=list)
    at_work: int = 0
    most_at_work: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> Environment:
        counts = self

        class Slow(Obedient):
            def step(self, reply: Reply) -> Any:
                with counts.lock:
                    counts.at_work += 1
                    counts.most_at_work = max(counts.most_at_work, counts.at_work)
                time.sleep(0.01)
                with counts.lock:
                    counts.at_work -= 1
                return super().step(reply)

            def close(self) -> None:
                counts.closed.append(self)

        self.made.append(Slow())
        return self.made[-1]


async def play_many(pool: WorkerPool, episodes: int) -> None:
    pool.open()
    await asyncio.gather(*(play(pool, "a", "b") for _ in range(episodes)))


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_no_more_episodes_are_played_at_once_than_there_are_places():
    counts = Counted()
    asyncio.run(play_many(WorkerPool(counts, "maze", size=3), 12))
    assert counts.most_at_work == 3
    assert len(counts.made) == 3


def test_workers_are_used_again_in_the_next_event_loop():
    counts = Counted()
    places = WorkerPool(counts, "maze", size=2)
    for _ in range(3):
        asyncio.run(play_many(places, 6))
    assert len(counts.made) == 2


def test_a_worker_whose_episode_failed_is_not_used_again():
    counts = Counted()
    places = WorkerPool(counts, "maze", size=1)
    with pytest.raises(EnvError):
        play_alone(places, "raise")
    play_alone(places, "a")
    assert len(counts.made) == 2
    assert eventually(lambda: counts.closed == counts.made[:1])


def test_closing_the_pool_closes_its_environments():
    counts = Counted()
    places = WorkerPool(counts, "maze", size=2)
    asyncio.run(play_many(places, 4))
    places.close()
    assert eventually(lambda: len(counts.closed) == 2)
    assert play_alone(places, "a") == ["0, 7", "a"]  # and it can be used again


def test_one_failure_does_not_disturb_the_others():
    async def mixed() -> list[Any]:
        places = pool(size=2, timeout_s=0.5)
        texts = ["a", "hang", "b", "raise", "c"]
        return await asyncio.gather(*(play(places, t) for t in texts), return_exceptions=True)

    ends = [type(end) if isinstance(end, Exception) else end[-1] for end in asyncio.run(mixed())]
    assert ends == ["a", EnvError, "b", EnvError, "c"]


@dataclass
class Leaves(Obedient):
    """Writes a file when it is closed."""

    path: str

    def __post_init__(self) -> None:
        super().__init__()

    def close(self) -> None:
        with open(self.path, "w") as file:
            file.write("closed")


def test_a_process_is_killed_when_it_hangs_and_replaced_when_it_died():
    places = pool("process", size=1)

    async def in_turn() -> list[str]:
        errors = []
        async with places.reserve() as worker:
            prompt, *_ = await places.run(worker, reset, 0, 0)
            assert prompt != f"I live in process {os.getpid()}"
        for text in ("raise", "die", "hang"):
            try:
                async with places.reserve() as worker:
                    places.timeout_s = 30  # an interpreter has to start
                    prompt, *_ = await places.run(worker, reset, 0, 0)
                    places.timeout_s = 0.5 if text == "hang" else 30
                    await places.run(worker, step, Reply(text))
            except EnvError as error:
                errors.append(str(error))
        return [*errors, prompt]

    raised, died, hung, prompt = asyncio.run(in_turn())
    assert "failed in step: KeyError: 'door' (" in raised
    assert "failed in step: its process ended with exit code 3" in died
    assert "did not answer step within 0.5 s" in hung
    assert eventually(lambda: is_gone(int(prompt.split()[-1])))


def is_gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # its end was noticed already
        return True


def test_a_process_closes_its_environment_when_the_pool_is_closed(tmp_path):
    note = tmp_path / "note"
    places = WorkerPool(partial(Leaves, str(note)), "maze", kind="process")
    assert play_alone(places, "a") == ["0, 7", "a"]
    places.close()
    assert eventually(note.exists)


def test_an_environment_that_cannot_be_sent_to_a_process_is_a_config_error():
    with pytest.raises(ConfigError, match="'maze' cannot be sent to a process"):
        WorkerPool(lambda: Obedient(), "maze", kind="process")


@pytest.mark.parametrize("settings", [{"size": 0}, {"timeout_s": 0}])
def test_a_pool_needs_places_and_time(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match="'maze' has"):
        pool(**settings)


class Honest(Obedient):
    """Reports the last reply as its state."""

    def __init__(self) -> None:
        super().__init__()
        self.format = WorldModeling("symbolic")
        self.last = "nothing"

    def step(self, reply: Reply) -> Any:
        self.last = reply.actions[0]
        return super().step(reply)

    def state(self) -> State:
        return State(f"heard {self.last}", "", self.last)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_claims_come_back_beside_the_state_before_and_after(kind: Literal["thread", "process"]):
    places = WorkerPool(Honest, "maze", kind=kind, size=1)
    reply = Honest().format.parse(
        "<think><observation>a</observation><prediction>b</prediction></think><answer>up</answer>"
    )

    async def play() -> tuple[Claim, ...]:
        async with places.reserve() as worker:
            _, claims = await places.run(worker, step, reply)
            return claims

    seen, expected = asyncio.run(play())
    places.close()
    assert (seen.kind, seen.text, seen.truth) == ("observation", "a", "nothing")
    assert (expected.kind, expected.text, expected.truth) == ("prediction", "b", "up")
    assert expected.state.natural == "heard up"
