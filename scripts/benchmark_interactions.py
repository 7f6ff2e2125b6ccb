"""Plays many conversations at once, in calm and in a storm, and measures their throughput.

    nice -n 19 python -m scripts.benchmark_interactions [--episodes 10000] [--at_once 512]

In the storm every method of the interaction may, at random, fail, cancel itself, hang until it is
cancelled or take its time, and episodes are abandoned or cancelled from outside. The same episodes
are then played one after the other, without delays. It prints how many episodes ended in which way,
how many results differ, and what is left in the tables of the interaction; the last two must be 0.

In calm weather an answer takes `--answer_s`, an episode three turns. Environments in threads that
share one event loop, as the trainer plays them, are compared with threads that have an event loop
each, and with coroutines without threads. Rounds alternate; the table has medians of episodes per
second and per CPU second, which depends less on other programs, and ratios to a loop for each
thread.
"""

from __future__ import annotations

import argparse
import asyncio
import queue
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from vagentrl.environment import Split, seed_of
from vagentrl.errors import EnvError
from vagentrl.interactions import BaseInteraction, InteractionEnvironment, Task, Tasks, session
from vagentrl.interactions.session import Session

TURNS = 3
FATES = ("raise", "cancel itself", "hang", "cancelled from outside", "abandoned")
"""What may happen in a turn of the storm beside an answer."""
SHARES = (0.02, 0.02, 0.004, 0.02, 0.02)

Result = tuple[tuple[float, ...], str]
"""The rewards of an episode, and how it ended."""


class Numbered(Tasks):
    """Tasks that differ in their number alone.

    Args:
        number: How many there are.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def count(self, split: Split) -> int:
        return self.number

    def task(self, split: Split, index: int) -> Task:
        messages = ({"role": "user", "content": f"Task {index}"},)
        return Task(messages, interaction={"name": "storm", "number": index}, number=index)


def fate(number: int, place: str) -> str:
    """What happens to an episode at a place: one of `FATES`, or nothing."""
    [drawn] = Random(f"{number} {place}").choices((*FATES, ""), weights=(*SHARES, 1 - sum(SHARES)))
    return drawn


class Storm(BaseInteraction):
    """An interaction with a table, whose methods do what the episode's fate is.

    Args:
        config: ``delay_s`` is the mean time that a method takes, ``turns`` the number of answers
            after which it ends the conversation, ``calm`` whether no method fails.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.table: dict[str, dict[str, int]] = {}
        self.started: Counter[int] = Counter()
        self.finalized: Counter[int] = Counter()

    async def start_interaction(
        self, instance_id: str | None = None, number: int = 0, **kwargs: Any
    ) -> str:
        assert instance_id is not None
        if instance_id in self.table:
            raise AssertionError("started twice")
        self.table[instance_id] = {"number": number, "turn": 0}
        self.started[number] += 1
        await self._suffer(number, "start_interaction")
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        one = self.table[instance_id]
        number, one["turn"] = one["number"], one["turn"] + 1
        if messages[-1]["content"] != f"reply {number}":
            raise AssertionError("the messages are of another conversation")
        await self._suffer(number, f"generate_response {one['turn']}")
        return one["turn"] == self.config["turns"], "Go on.", float(number + one["turn"]), {}

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        number = self.table[instance_id]["number"]
        await self._suffer(number, "calculate_score")
        return float(number)

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        number = self.table.pop(instance_id)["number"]
        self.finalized[number] += 1
        await self._suffer(number, "finalize_interaction")

    async def _suffer(self, number: int, place: str) -> None:
        if self.config["delay_s"]:
            rng = Random(f"{number} {place} delay")
            await asyncio.sleep(rng.expovariate(1 / self.config["delay_s"]))
        match "" if self.config["calm"] else fate(number, place):
            case "raise":
                raise ValueError(f"a failure in {place}")
            case "cancel itself":
                raise asyncio.CancelledError
            case "hang" if place != "finalize_interaction":
                await asyncio.sleep(3600)
            case "cancelled from outside" if place.startswith("generate_response"):
                await asyncio.sleep(3600)


def make(interaction: Storm, episodes: int, patience_s: float) -> InteractionEnvironment:
    return InteractionEnvironment(
        Numbered(episodes), interaction, reward="external", patience_s=patience_s
    )


def play(environment: InteractionEnvironment, number: int) -> Result:
    """Play one episode of the storm, to its end or to its fate."""
    rewards: list[float] = []
    reply = environment.format(f"reply {number}")
    try:
        environment.reset(seed_of("train", number))
        terminated = False
        for turn in range(1, TURNS + 1):
            match fate(number, f"generate_response {turn}"):
                case "abandoned":
                    return tuple(rewards), "abandoned"  # the next reset, or close, finalizes it
                case "cancelled from outside":
                    cancel_answer(environment, number)
                    return tuple(rewards), "cancelled from outside"
            result = environment.step(reply)
            rewards.append(result.reward)
            terminated = result.terminated
        return tuple(rewards), "terminated" if terminated else "still running"
    except EnvError as error:
        # neither the line nor the patience, which differs between the runs, belongs to the result
        return tuple(rewards), re.sub(r" \(.*| than [\d.]+ s;.*", "", str(error))


def cancel_answer(environment: InteractionEnvironment, number: int) -> None:
    """Ask for an answer that never comes, and cancel the question."""
    current = environment._session
    assert current is not None
    messages = [{"role": "assistant", "content": f"reply {number}"}]
    future = session.LOOP.submit(current.respond(messages))
    session.LOOP.run(asyncio.sleep(0))
    future.cancel()


def play_all(
    environments: list[InteractionEnvironment],
    episodes: int,
    play_one: Callable[[InteractionEnvironment, int], Result],
) -> list[tuple[int, Result]]:
    """Play all episodes, each environment in a thread of its own, as workers do."""
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(episodes):
        numbers.put(number)
    results: list[tuple[int, Result]] = []

    def work(environment: InteractionEnvironment) -> None:
        while True:
            try:
                number = numbers.get_nowait()
            except queue.Empty:
                break
            results.append((number, play_one(environment, number)))
        environment.close()

    threads = [threading.Thread(target=work, args=(one,)) for one in environments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def storm(
    episodes: int, at_once: int, delay_s: float, patience_s: float
) -> tuple[Storm, list[tuple[int, Result]]]:
    """Play the storm's episodes; returns the interaction and the results as they came."""
    interaction = Storm({"name": "storm", "delay_s": delay_s, "turns": TURNS, "calm": False})
    environments = [make(interaction, episodes, patience_s) for _ in range(at_once)]
    return interaction, play_all(environments, episodes, play)


# ------------------------------------------------------------------------------------- calm weather


async def converse(interaction: Storm, number: int) -> None:
    """One calm episode without an environment."""
    one = Session(interaction, {"name": "storm", "number": number}, 60.0)
    await one.start()
    messages = [{"role": "assistant", "content": f"reply {number}"}]
    while not (await one.respond(messages)).over:
        pass
    await one.score()
    await one.finalize()


def shared_loop(interaction: Storm, episodes: int, at_once: int) -> None:
    """Environments in threads that share an event loop."""
    play_all([make(interaction, episodes, 60.0) for _ in range(at_once)], episodes, play_calmly)


def play_calmly(environment: InteractionEnvironment, number: int) -> Result:
    environment.reset(seed_of("train", number))
    reply = environment.format(f"reply {number}")
    while not environment.step(reply).terminated:
        pass
    return (), ""


def loop_each(interaction: Storm, episodes: int, at_once: int) -> None:
    """The same environments with an event loop in each thread."""
    local, shared = threading.local(), session.LOOP

    class OwnLoop:
        def submit(self, work: Any) -> Any:
            if not hasattr(local, "runner"):
                local.runner = asyncio.Runner()
            future: Any = asyncio.Future(loop=local.runner.get_loop())
            future.set_result(local.runner.run(work))
            return _Done(future.result())

    session.LOOP = OwnLoop()  # pyright: ignore
    waiting, session.wait = session.wait, lambda *_: None  # pyright: ignore
    try:
        shared_loop(interaction, episodes, at_once)
    finally:
        session.LOOP, session.wait = shared, waiting


class _Done:
    """A finished future."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout: float | None = None) -> Any:
        return self._value

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False


def coroutines(interaction: Storm, episodes: int, at_once: int) -> None:
    """Coroutines on the shared loop, and no other threads."""

    numbers = iter(range(episodes))

    async def work() -> None:
        for number in numbers:
            await converse(interaction, number)

    async def work_all() -> None:
        await asyncio.gather(*(work() for _ in range(at_once)))

    session.LOOP.run(work_all())


WAYS = {"a loop each": loop_each, "shared loop": shared_loop, "coroutines": coroutines}


def throughput(
    episodes: int, at_once: int, answer_s: float, rounds: int
) -> dict[str, tuple[float, float]]:
    """Episodes per second of each way, and per CPU second of this process, as medians over
    alternating rounds."""
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    config = {"name": "storm", "delay_s": answer_s, "turns": TURNS, "calm": True}
    for _ in range(rounds):
        for name, way in WAYS.items():
            began, busy = time.perf_counter(), time.process_time()
            way(Storm(config), episodes, at_once)
            seconds, busy = time.perf_counter() - began, time.process_time() - busy
            speeds[name].append((episodes / seconds, episodes / busy))
    columns = {name: zip(*measured, strict=True) for name, measured in speeds.items()}
    return {name: tuple(map(statistics.median, both)) for name, both in columns.items()}  # pyright: ignore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--at_once", type=int, default=512)
    parser.add_argument("--answer_s", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    began = time.perf_counter()
    interaction, results = storm(args.episodes, args.at_once, delay_s=0.01, patience_s=5.0)
    seconds = time.perf_counter() - began
    alone, wanted = storm(args.episodes, 1, delay_s=0.0, patience_s=0.5)
    print(f"storm: {args.episodes} episodes, {args.at_once} at once, {seconds:.1f} s")
    for end, count in Counter(kind(end) for _, (_, end) in results).most_common():
        print(f"  {count:6d}  {end}")
    different = sum(dict(results)[number] != result for number, result in wanted)
    print(f"different from the sequential run: {different}")
    print(
        f"lost: {args.episodes - len(dict(results))}, doubled: {len(results) - len(dict(results))}"
    )
    for name, one in (("at once", interaction), ("sequential", alone)):
        print(
            f"{name}: started {one.started.total()}, finalized {one.finalized.total()}, "
            f"left in the table {len(one.table)}"
        )
    speeds = throughput(args.episodes, args.at_once, args.answer_s, args.rounds)
    slow, costly = speeds["a loop each"]
    for name, (speed, thrift) in speeds.items():
        print(
            f"{name:12s} {speed:7.0f} episodes/s {speed / slow:6.2f}x"
            f" {thrift:7.0f} per CPU second {thrift / costly:6.2f}x"
        )


def kind(end: str) -> str:
    """The end of an episode without what names the turn."""
    return end.rstrip("0123456789 ")


if __name__ == "__main__":
    main()
