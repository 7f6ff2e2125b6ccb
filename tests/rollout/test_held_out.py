"""Evaluations start from different states as far as there are enough."""

import os
from functools import partial
from typing import Any

import pytest

from vagentrl.environment import Environment, Split, seed_of, split_of
from vagentrl.errors import ConfigError
from vagentrl.formats import NoThink
from vagentrl.rollout.held_out import held_out_seeds
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Observation, Reply, State, StepResult


class Rooms(Environment):
    """Starts in room ``index // 3 % rooms`` for the seed of that index.

    Args:
        rooms: How many there are.
        told: Whether the state says which.
        broken: Seeds that raise.
    """

    def __init__(self, rooms: int, told: bool = True, broken: tuple[int, ...] = ()) -> None:
        super().__init__(NoThink())
        self.rooms, self.told, self.broken = rooms, told, broken
        self.resets: list[int] = []

    def at_iteration(self, iteration: int) -> None:
        assert iteration == 0

    def system_prompt(self) -> str:
        return "Leave."

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        if seed in self.broken:
            raise RuntimeError("the door is locked")
        self.resets.append(seed)
        self.room = seed // 4 // 3 % self.rooms
        return Observation("a room")

    def step(self, reply: Reply) -> StepResult:
        return StepResult(Observation("a room"), 0.0, terminated=True)

    def state(self) -> State | None:
        return State(*[f"room {self.room}"] * 3) if self.told else None


class Elsewhere(Rooms):
    """Reports its process id as the initial state."""

    def initial_state(self, seed: int) -> int:
        return os.getpid()


class Listing(Rooms):
    """Reports its initial state as a list, which has no hash."""

    def initial_state(self, seed: int) -> Any:
        return [seed]


def indices(seeds: tuple[int, ...]) -> list[int]:
    return [seed // 4 for seed in seeds]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_every_episode_starts_from_another_state_while_there_are_others(split: Split):
    seeds = held_out_seeds(WorkerPool(partial(Rooms, 10), "rooms"), split, 5)
    assert indices(seeds) == [0, 3, 6, 9, 12]  # three seeds in a row share a room
    assert {split_of(seed) for seed in seeds} == {split}


def test_fewer_episodes_are_the_first_of_more():
    pool = WorkerPool(partial(Rooms, 10), "rooms")
    assert held_out_seeds(pool, "test", 3) == held_out_seeds(pool, "test", 8)[:3]


def test_where_states_run_out_they_repeat_with_their_seeds_and_this_is_said_once(
    caplog: pytest.LogCaptureFixture,
):
    pool = WorkerPool(partial(Rooms, 3), "rooms")
    assert indices(held_out_seeds(pool, "validation", 8)) == [0, 3, 6, 0, 3, 6, 0, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "environment 'rooms' starts from 3 different states under the first 32 validation seeds; "
        "an evaluation plays 8 episodes, so states repeat"
    ]


def test_an_environment_that_does_not_tell_its_state_is_reset_once(
    caplog: pytest.LogCaptureFixture,
):
    made: list[Rooms] = []

    def make() -> Rooms:
        made.append(Rooms(3, told=False))
        return made[-1]

    seeds = held_out_seeds(WorkerPool(make, "rooms"), "validation", 8)
    assert indices(seeds) == list(range(8))
    assert [seed for room in made for seed in room.resets] == [seed_of("validation", 0)]
    assert not caplog.records


def test_a_seed_whose_reset_fails_is_kept_and_fails_when_it_is_played():
    broken = seed_of("validation", 4)
    pool = WorkerPool(partial(Rooms, 10, broken=(broken,)), "rooms")
    assert indices(held_out_seeds(pool, "validation", 4)) == [0, 3, 4, 6]


def test_a_state_that_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="'rooms' gave a list as an initial_state"):
        held_out_seeds(WorkerPool(partial(Listing, 1), "rooms"), "validation", 2)


def test_worker_processes_tell_too():
    pool = WorkerPool(partial(Elsewhere, 1), "rooms", kind="process", size=1)
    assert indices(held_out_seeds(pool, "validation", 2)) == [0, 0]
    pool.close()
