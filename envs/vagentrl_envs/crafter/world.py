"""The library `crafter`, made to give the same game every time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

VIEW = (9, 7)
"""Columns and rows that the player sees, with the player in the middle."""


class OrderedSet:
    """A set that is iterated in the order of insertion.

    The library keeps the objects of a chunk in a `set`, whose order depends on where in memory the
    objects are; which creature despawns depends on that order.
    """

    def __init__(self) -> None:
        self._items: dict[Hashable, None] = {}

    def add(self, item: Hashable) -> None:
        self._items[item] = None

    def remove(self, item: Hashable) -> None:
        del self._items[item]

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Passed(NamedTuple):
    """What a step of the library gave.

    Attributes:
        reward: A tenth of the change of health, and 1 if an achievement was unlocked.
        dead: Whether the player has died.
        out_of_time: Whether the library's limit of steps is reached.
    """

    reward: float
    dead: bool
    out_of_time: bool


class World:
    """A game of Crafter that is decided by its seeds and actions.

    Pictures are drawn only when they are asked for, with noise of their own, so that it does not
    matter for the game whether anybody looks.

    Args:
        length: Steps after which the library ends the episode.
    """

    def __init__(self, length: int) -> None:
        import crafter  # pyright: ignore[reportMissingImports]

        self.env: Any = crafter.Env(seed=0, length=length)
        self.length = length
        self.env._obs = lambda: None
        self.env._local_view._noise = self._noise

    def start(self, seed: int, transition_seed: int) -> None:
        """Start a game.

        Args:
            seed: Decides the map.
            transition_seed: With `seed`, decides what happens in it.
        """
        world = self.env._world

        def reset(seed: int) -> None:
            # The library's own seed has 31 bits, so that many seeds would share maps.
            type(world).reset(world, np.random.SeedSequence(map_seed).generate_state(8))
            world._chunks = defaultdict(OrderedSet)

        map_seed = seed
        world.reset = reset
        self.env.reset()
        happening = np.random.SeedSequence((seed, transition_seed, 1))
        world.random.seed(happening.generate_state(8))

    @property
    def player(self) -> Any:
        return self.env._player

    @property
    def steps(self) -> int:
        """Number of steps that were played."""
        return self.env._step

    @property
    def inventory(self) -> Mapping[str, int]:
        """What the player has, with health, food, drink and energy."""
        return self.player.inventory

    @property
    def unlocked(self) -> frozenset[str]:
        """The achievements that were unlocked so far."""
        return frozenset(name for name, count in self.player.achievements.items() if count)

    @property
    def light(self) -> float:
        """From 0 at night to 1 by day."""
        return float(self.env._world.daylight)

    def step(self, action: int) -> Passed:
        """Play one action, by its number in the library's list."""
        _, reward, _, _ = self.env.step(action)
        dead = self.player.health <= 0
        return Passed(float(reward), bool(dead), self.steps >= self.length)

    def at(self, right: int, down: int) -> str | None:
        """Name what is so many cells to the right of the player and below; None beyond the map."""
        x, y = self.player.pos
        place = (int(x) + right, int(y) + down)
        material, thing = self.env._world[place]
        if thing is None:
            return material
        name = type(thing).__name__.lower()
        return f"ripe {name}" if name == "plant" and thing.ripe else name

    def view(self) -> list[list[str | None]]:
        """Name what is in each cell that the player sees: 7 rows of 9."""
        columns, rows = VIEW
        return [
            [self.at(x - columns // 2, y - rows // 2) for x in range(columns)] for y in range(rows)
        ]

    def picture(self, cell: int) -> np.ndarray:
        """Draw what the player sees above what it has: `(9 * cell, 9 * cell, 3)`."""
        return self.env.render((9 * cell, 9 * cell))

    def _noise(self, canvas: np.ndarray, amount: float, stddev: float) -> np.ndarray:
        """Add the noise of the night, which the library takes from the stream of the game."""
        random = np.random.default_rng(self.steps)
        noise = random.uniform(32, 127, canvas.shape[:2])[..., None]
        mask = amount * self.env._local_view._vignette(canvas.shape, stddev)[..., None]
        return (1 - mask) * canvas + mask * noise
