"""Plays episodes concurrently, each in a coroutine of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from typing import Any

from vagentrl import ranks
from vagentrl.contexts import Context, FullHistory
from vagentrl.devices import same_device
from vagentrl.engines.base import Engine, Sampling
from vagentrl.errors import RolloutError
from vagentrl.event_loops import SharedLoop, run_to_the_end
from vagentrl.formats import ReplyFormat
from vagentrl.rollout.episodes import EnvironmentSlot, Episode, OnTurn, RunningEpisode
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Trajectory

OnEnd = Callable[[Trajectory], None]
Begun = Future[list[list[Trajectory]]]
"""Episodes that are being played in the background."""


class Collector:
    """Plays episodes with the engine's policy.

    Args:
        engine: Samples the replies.
        renderer: Turns text and images into tokens.
        pools: The pool of workers of each environment, by the environment's name.
        context_length: Length of the model's context in tokens.
        context: Which earlier turns the model sees.
        lockstep: Play all episodes turn by turn: sample all replies of a turn, then step one
            environment after the other. The episodes are the same, but take longer.
        background: Play in a thread of its own, so that episodes can begin before anybody waits
            for them.

    Attributes:
        instructions: System prompt and reply format of the latest episode in each environment.
        cancelled: Whether no more episodes are played in the background.
        gate: Every reply is sampled inside of it.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        pools: Mapping[str, WorkerPool],
        context_length: int,
        context: Context = FullHistory(),  # noqa: B008 (frozen)
        lockstep: bool = False,
        background: bool = False,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.pools = pools
        self.context_length = context_length
        self.context = context
        self.lockstep = lockstep
        self.sessions = itertools.count()
        self.instructions: dict[str, tuple[str, ReplyFormat]] = {}
        self.cancelled = False
        self.gate = ReplyGate()
        self._background = SharedLoop("play") if background else None

    def collect(
        self,
        episodes: Sequence[Episode],
        sampling: Sampling,
        on_end: OnEnd = lambda trajectory: None,
        on_turn: OnTurn = lambda turn: None,
    ) -> list[Trajectory]:
        """Play all episodes; returns their trajectories in the same order.

        An episode that fails is a trajectory with an `error`; so is one whose first prompt leaves
        no room for a reply. One without room for a later reply is truncated.

        Args:
            episodes: The episodes to play.
            sampling: How replies are sampled.
            on_end: Called with each trajectory when its episode ends.
            on_turn: Called with each turn when it ends.

        Raises:
            RolloutError: When every episode failed, on every rank.
            EngineDead: When the engine can answer nothing any more.
        """

        return self._run(self._coroutines(episodes, sampling, on_end, on_turn))

    def begin(
        self, episodes: Sequence[Episode], sampling: Sampling, on_end: OnEnd, on_turn: OnTurn
    ) -> Begun:
        """Begin to play episodes in the background, as `collect` does; `finish` waits for them."""
        return self._begin(self._coroutines(episodes, sampling, on_end, on_turn))

    def finish(self, begun: Begun) -> list[Trajectory]:
        """Wait for episodes that were begun; returns and raises what `collect` would.

        Raises:
            CancelledError: When the episodes were cancelled.
        """
        return _succeeded(begun.result())

    def _coroutines(
        self, episodes: Sequence[Episode], sampling: Sampling, on_end: OnEnd, on_turn: OnTurn
    ) -> list[Coroutine[Any, Any, list[Trajectory]]]:
        async def play(episode: Episode) -> list[Trajectory]:
            running = RunningEpisode(self, episode)
            try:
                async with self.pools[episode.environment].reserve() as worker:
                    await running.begin(worker)
                    while not running.over:
                        on_turn(await running.play(sampling))
            except RolloutError as error:
                running.fail(error)
            trajectory = running.take()
            on_end(trajectory)
            return [trajectory]

        if self.lockstep:
            return [self._in_lockstep(episodes, sampling, on_end, on_turn)]
        return [play(episode) for episode in episodes]

    async def _in_lockstep(
        self, episodes: Sequence[Episode], sampling: Sampling, on_end: OnEnd, on_turn: OnTurn
    ) -> list[Trajectory]:
        async def answer(running: RunningEpisode) -> None:
            on_turn(await running.answer())

        playing = [RunningEpisode(self, episode) for episode in episodes]
        workers = [self.pools[episode.environment].acquire() for episode in episodes]
        try:
            for running, worker in zip(playing, workers, strict=True):
                await running.fail_on_error(running.begin(worker))
            while alive := [running for running in playing if not running.over]:
                sampled = (running.fail_on_error(running.sample(sampling)) for running in alive)
                await asyncio.gather(*sampled)
                for running in alive:
                    if running.stop is None:
                        await running.fail_on_error(answer(running))
        finally:
            for running, worker in zip(playing, workers, strict=True):
                healthy = running.over and running.stop != "failed"
                self.pools[running.episode.environment].release(worker, healthy=healthy)
        trajectories = [running.take() for running in playing]
        for trajectory in trajectories:
            on_end(trajectory)
        return trajectories

    def collect_turns(
        self,
        slots: Sequence[EnvironmentSlot],
        turns: int,
        sampling: Sampling,
        on_end: OnEnd = lambda trajectory: None,
        on_turn: OnTurn = lambda turn: None,
        iteration: int = 0,
    ) -> list[Trajectory]:
        """Play a fixed number of turns in every slot, however long its episodes are (Verlog).

        When an episode ends, the slot starts its next one. An episode that has not ended after the
        last turn is cut there, and continues in the next call. The turn in which an episode fails
        counts as one of its slot's turns.

        Args:
            slots: The slots to play in.
            turns: Number of turns in each slot.
            sampling: How replies are sampled.
            on_end: Called with each trajectory when it ends or is cut.
            on_turn: Called with each turn when it ends.
            iteration: The training iteration, for episodes that start in this call.

        Returns:
            All trajectories of the first slot in the order of play, then those of the next slot.

        Raises:
            RolloutError: When every episode failed, on every rank.
            EngineDead: When the engine can answer nothing any more.
        """

        async def play(slot: EnvironmentSlot) -> list[Trajectory]:
            trajectories: list[Trajectory] = []
            for left in reversed(range(turns)):
                running = await slot.turn(self, sampling, on_turn, iteration)
                if left == 0 or running.stop is not None:
                    trajectories.append(running.take())
                    on_end(trajectories[-1])
            return trajectories

        return self._run([play(slot) for slot in slots])

    def between_replies(self, change: Callable[[], None]) -> None:
        """Give the engine new weights while episodes are played in the background.

        Replies that are being sampled end first, and no other begins. Afterwards the episodes go
        on under the new weights. All ranks must call this together.

        Args:
            change: Updates the engine. It is called in the thread that uses the engine.
        """
        assert self._background is not None
        select_device = same_device()

        async def wait_and_change() -> None:
            select_device()
            async with self.gate.closed():
                ranks.wait_for_all()  # engines may share their servers
                change()

        self._background.run(wait_and_change())

    def cancel(self) -> None:
        """Cancel the episodes in the background; whoever waits for them gets a `CancelledError`.

        Nothing is played there until `cancelled` is False again.
        """
        self.cancelled = True
        self.close()

    def close(self) -> None:
        """End the thread that plays in the background; the next episodes start another."""
        if self._background is not None:
            self._background.close()
            self.gate = ReplyGate()
            self._open_pools()

    def _run(self, playing: Sequence[Coroutine[Any, Any, list[Trajectory]]]) -> list[Trajectory]:
        if self._background is None:
            self._open_pools()
            return _succeeded(run_to_the_end(lambda: _together(playing), same_device()))
        begun = self._begin(playing)
        try:
            return self.finish(begun)
        finally:
            begun.cancel()  # it does nothing to what has ended

    def _begin(self, playing: Sequence[Coroutine[Any, Any, list[Trajectory]]]) -> Begun:
        assert self._background is not None
        if self.cancelled:
            for coroutine in playing:
                coroutine.close()
            raise CancelledError("the run has failed, so no more episodes are played")
        return self._background.submit(_together(playing, same_device()))

    def _open_pools(self) -> None:
        for pool in self.pools.values():
            pool.open()


class ReplyGate:
    """Replies are sampled inside of it; while it is closed, none begins."""

    def __init__(self) -> None:
        self._inside = 0
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Sample a reply in this context, which is entered when the gate is open."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """In this context, which is entered when the last reply has ended, none is sampled."""
        self._open.clear()
        try:
            await self._empty.wait()
            yield
        finally:
            self._open.set()


async def _together(
    playing: Sequence[Coroutine[Any, Any, list[Trajectory]]],
    enter_thread: Callable[[], None] = lambda: None,
) -> list[list[Trajectory]]:
    enter_thread()
    tasks = [asyncio.ensure_future(coroutine) for coroutine in playing]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:  # if one has failed, the others would go on
            task.cancel()


def _succeeded(everyones: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
    """All trajectories, unless every episode failed on every rank."""
    trajectories = [trajectory for played in everyones for trajectory in played]
    failed = all(trajectory.error for trajectory in trajectories)
    if all(ranks.gather([failed])) and trajectories:
        raise RolloutError(
            f"all {len(trajectories)} episodes failed; the first one: {trajectories[0].error}"
        )
    return trajectories
