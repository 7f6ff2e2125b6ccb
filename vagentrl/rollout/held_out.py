"""Chooses the seeds of an evaluation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Sequence

from vagentrl import ranks
from vagentrl.environment import Split, seed_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.event_loops import run_to_the_end
from vagentrl.rollout.workers import WorkerPool, initial_state

log = logging.getLogger(__name__)

SEEDS_PER_EPISODE = 4
"""How many seeds are tried per episode in search of different states, before states repeat."""


def held_out_seeds(pool: WorkerPool, split: Split, episodes: int) -> tuple[int, ...]:
    """The first seeds of a split with different initial states, one for each episode.

    If there are fewer different states than episodes, the seeds repeat in the same order. If the
    environment does not report its initial state, these are simply the first seeds of the split.
    All ranks must call this together.
    """
    first = [seed_of(split, 0)]
    if _initial_states(pool, first) == [None]:
        return tuple(seed_of(split, index) for index in range(episodes))
    seeds: dict[Hashable, int] = {}
    tried, most = 0, SEEDS_PER_EPISODE * episodes
    while (missing := episodes - len(seeds)) and tried < most:
        batch = [seed_of(split, index) for index in range(tried, min(tried + missing, most))]
        for seed, state in zip(batch, _initial_states(pool, batch), strict=True):
            seeds.setdefault(object() if state is None else state, seed)
        tried += len(batch)
    if missing and ranks.rank() == 0:
        log.warning(
            "environment %r starts from %d different states under the first %d %s seeds; an "
            "evaluation plays %d episodes, so states repeat",
            pool.name,
            len(seeds),
            tried,
            split,
            episodes,
        )
    different = tuple(seeds.values())
    return tuple(different[number % len(different)] for number in range(episodes))


def _initial_states(pool: WorkerPool, seeds: Sequence[int]) -> list[Hashable | None]:
    """The initial state of each seed, None where it is unknown. The ranks share the work."""

    async def ask(seed: int) -> Hashable | None:
        try:
            async with pool.reserve() as worker:
                return await pool.run(worker, initial_state, seed)
        except EnvError:  # the episode of this seed will fail too, and is then counted as failed
            return None

    async def ask_all() -> list[Hashable | None]:
        pool.open()
        return await asyncio.gather(*map(ask, ranks.shard(seeds)))

    states = ranks.gather(run_to_the_end(ask_all))
    for state in states:
        if not isinstance(state, Hashable):
            raise ConfigError(
                f"environment {pool.name!r} gave a {type(state).__name__} as an initial_state, "
                "which has no hash to compare it by; give a string or a tuple, or None where the "
                "state is unknown"
            )
    return states
