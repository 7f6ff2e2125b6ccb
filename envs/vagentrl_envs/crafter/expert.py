"""A scripted player of Crafter.

It knows the whole map and the library's tables, keeps no memory, and works through the achievements
in order. It is good, not optimal: it does not protect its sleep or its plants.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from vagentrl_envs.crafter.world import World

ORDER = (
    "collect_wood", "place_table", "make_wood_pickaxe", "make_wood_sword", "collect_drink",
    "collect_sapling", "place_plant", "eat_cow", "wake_up", "collect_stone", "place_stone",
    "make_stone_pickaxe", "make_stone_sword", "collect_coal", "place_furnace", "collect_iron",
    "make_iron_pickaxe", "make_iron_sword", "defeat_zombie", "collect_diamond", "defeat_skeleton",
    "eat_plant",
)  # fmt: skip
"""The order in which achievements are sought."""

MOVES = {(-1, 0): "move west", (1, 0): "move east", (0, -1): "move north", (0, 1): "move south"}
WALKABLE = ("grass", "sand", "path")
SOURCES = {"wood": "tree", "sapling": "grass", "drink": "water"}
"""What is worked on for an item; ores are named like what they give."""

HUNGRY, TIRED = 4, 3
DAY = 0.6
"""The light from which it is safe to sleep."""
NEAR = 12
"""Steps to a table or furnace beyond which a new one is built."""

Place = tuple[int, int]
Wanted = Callable[[Place], bool]


def next_action(world: World) -> str | None:
    """Return what the player does next; None once it is dead."""
    if world.player.health <= 0:
        return None
    return _Player(world).act()


class _Player:
    def __init__(self, world: World) -> None:
        from crafter import constants  # pyright: ignore[reportMissingImports]

        self.world = world
        self.tables: Any = constants
        self.map: Any = world.env._world
        self.have = world.inventory
        x, y = world.player.pos
        self.here: Place = int(x), int(y)
        ahead = world.player.facing
        self.ahead: Place = self.here[0] + int(ahead[0]), self.here[1] + int(ahead[1])

    def act(self) -> str:
        if self.world.player.sleeping:
            return "noop"
        tries = [self._fight, self._live, *(self._seek(name) for name in ORDER), self._wander]
        return next(action for attempt in tries if (action := attempt()) is not None)

    # ------------------------------------------------------------------------------- what it wants

    def _fight(self) -> str | None:
        """Attack a zombie or skeleton that is beside the player."""
        for step, move in MOVES.items():
            place = self.here[0] + step[0], self.here[1] + step[1]
            if self._thing(place) in ("zombie", "skeleton"):
                return "do" if place == self.ahead else move
        return None

    def _live(self) -> str | None:
        """Drink, eat or sleep before it is too late."""
        action = None
        ahead = self._name(self.ahead)
        if ahead == "water" and self.have["drink"] < 9:
            return "do"
        if ahead == "cow" and self.have["food"] < 7:
            return "do"
        if self.have["drink"] < HUNGRY:
            action = self._work_on("water")
        if action is None and self.have["food"] < HUNGRY:
            action = self._work_on("cow")
        if action is None and self.have["energy"] < TIRED:
            action = "sleep"
        return action

    def _seek(self, name: str) -> Callable[[], str | None]:
        """Return what works towards an achievement that is not unlocked."""
        verb, thing = name.split("_", 1)

        def attempt() -> str | None:
            if name in self.world.unlocked:
                return None
            match verb:
                case "collect":
                    return self._collect(thing)
                case "make":
                    return self._make(thing)
                case "place":
                    return self._place(thing)
                case "wake":
                    return "sleep" if self.have["energy"] < 9 and self._quiet() else None
                case _:
                    return self._work_on("ripe plant" if thing == "plant" else thing)

        return attempt

    def _quiet(self) -> bool:
        """Return whether it is day and no zombie is in view."""
        return self.world.light > DAY and not any("zombie" in row for row in self.world.view())

    def _wander(self) -> str:
        """Drink and eat what is near, or stay."""
        for vital, source in (("drink", "water"), ("food", "cow")):
            if self.have[vital] < 9 and (action := self._work_on(source)) is not None:
                return action
        return "noop"

    def _collect(self, item: str) -> str | None:
        source = SOURCES.get(item, item)
        for tool in self.tables.collect[source]["require"]:
            if not self.have[tool]:
                return self._make(tool)
        return self._work_on(source)

    def _make(self, tool: str) -> str | None:
        how = self.tables.make[tool]
        missing = self._missing(how["uses"])
        if missing is not None:
            return self._collect(missing)
        for station in how["nearby"]:
            if not self._beside(station):
                return self._go_beside(station)
        return f"make {tool.replace('_', ' ')}"

    def _place(self, thing: str) -> str | None:
        how = self.tables.place[thing]
        missing = self._missing(how["uses"])
        if missing is not None:
            return self._collect(missing)
        if self._material(self.ahead) in how["where"] and self._thing(self.ahead) is None:
            return f"place {thing}"
        safe = [material for material in how["where"] if material != "lava"]
        return self._go(lambda place: self._material(place) in safe)

    # ------------------------------------------------------------------------------ how it gets it

    def _missing(self, uses: dict[str, int]) -> str | None:
        return next((item for item, n in uses.items() if self.have[item] < n), None)

    def _beside(self, station: str) -> bool:
        return station in self.map.nearby(self.here, 1)[0]

    def _go_beside(self, station: str) -> str | None:
        """Go to a table or furnace, or build one where none is near."""
        found = self._go(lambda place: self._material(place) == station, NEAR)
        return found or self._place(station)

    def _work_on(self, name: str) -> str | None:
        """Go to the nearest thing of a kind and work on it."""
        if self._name(self.ahead) == name:
            return "do"
        return self._go(lambda place: self._name(place) == name)

    def _go(self, wanted: Wanted, longest: int = 10_000) -> str | None:
        """Return the first move to the nearest place that is wanted, through rock if need be."""
        queue: list[tuple[int, Place, Place | None]] = [(0, self.here, None)]
        seen: set[Place] = set()
        while queue:
            cost, place, first = heappop(queue)
            if place in seen or cost > longest:
                continue
            seen.add(place)
            if first is not None and wanted(place):
                return self._toward(first)
            price = 0 if place == self.here else self._price(place)
            if price is None:
                continue
            for step in MOVES:
                beside = place[0] + step[0], place[1] + step[1]
                if beside not in seen and self._material(beside) is not None:
                    heappush(queue, (cost + price + 1, beside, first or beside))
        return None

    def _price(self, place: Place) -> int | None:
        """Return what it costs more to go through a place than to walk; None if it is closed."""
        if self._thing(place) is not None:
            return None
        material = self._material(place)
        if material == "stone" and self.have["wood_pickaxe"]:
            return 1
        return 0 if material in WALKABLE else None

    def _toward(self, place: Place) -> str:
        mined = self._material(place) == "stone" and place == self.ahead
        if mined and self.have["wood_pickaxe"]:
            return "do"
        return MOVES[place[0] - self.here[0], place[1] - self.here[1]]

    def _material(self, place: Place) -> str | None:
        return self.map[place][0]

    def _thing(self, place: Place) -> str | None:
        thing = self.map[place][1]
        return None if thing is None else type(thing).__name__.lower()

    def _name(self, place: Place) -> str | None:
        return self.world.at(place[0] - self.here[0], place[1] - self.here[1])
