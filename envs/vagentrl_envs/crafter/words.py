"""What a player of Crafter sees and has, in words and symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vagentrl_envs.crafter.world import VIEW, World

SIGHTS = (
    "water", "grass", "stone", "path", "sand", "tree", "lava", "coal", "iron", "diamond", "table",
    "furnace", "player", "cow", "zombie", "skeleton", "arrow", "plant", "ripe plant",
)  # fmt: skip
SYMBOLS = "~.#:,TLcidtf@CZSapP"
"""A symbol for each of `SIGHTS`; a blank is beyond the edge of the world."""
GROUND = ("grass", "sand", "path")
"""What is walked over and not worth naming."""
VITALS = ("health", "food", "drink", "energy")

FACING = {(0, -1): "north", (1, 0): "east", (0, 1): "south", (-1, 0): "west"}
"""The direction that the player faces, as (right, down)."""

Sight = tuple[str, int, int]
"""What is seen, how many cells to the right of the player, and how many below."""


def legend() -> str:
    """Name what each symbol stands for."""
    return ", ".join(f"{s} {name}" for s, name in zip(SYMBOLS, SIGHTS, strict=True))


def grid(world: World) -> str:
    """Write what the player sees with a symbol for each cell, north at the top."""
    symbol: dict[str, str] = dict(zip(SIGHTS, SYMBOLS, strict=True))
    rows = world.view()
    return "\n".join("".join(" " if s is None else symbol[s] for s in row) for row in rows)


def nearest(world: World) -> list[Sight]:
    """Return the nearest of each kind of thing that is seen, except ground, the nearest first.

    Of several that are equally near, it is the first in reading order.
    """
    found: dict[str, Sight] = {}
    for row, names in enumerate(world.view()):
        for column, name in enumerate(names):
            right, down = column - VIEW[0] // 2, row - VIEW[1] // 2
            if name is None or name in GROUND or name == "player":
                continue
            known = found.get(name)
            if known is None or _far((name, right, down)) < _far(known):
                found[name] = (name, right, down)
    return sorted(found.values(), key=_far)


def _far(sight: Sight) -> int:
    return abs(sight[1]) + abs(sight[2])


def way(right: int, down: int) -> str:
    """Say where something is, such as "2 east 1 north"."""
    across = [f"{abs(right)} {'east' if right > 0 else 'west'}"] * bool(right)
    along = [f"{abs(down)} {'south' if down > 0 else 'north'}"] * bool(down)
    return " ".join(across + along)


def facing(world: World) -> tuple[str, str]:
    """Return the direction that the player faces, and what is there."""
    x, y = (int(step) for step in world.player.facing)
    return FACING[x, y], world.at(x, y) or "the edge of the world"


def belongings(inventory: Mapping[str, int]) -> dict[str, int]:
    """Return what the player carries."""
    return {name: n for name, n in inventory.items() if n and name not in VITALS}


def told(world: World, sights: Sequence[Sight] | None = None) -> str:
    """Say what the player sees, faces, has and does."""
    sights = nearest(world) if sights is None else sights
    seen = [f"{name} {way(right, down)}" for name, right, down in sights]
    direction, ahead = facing(world)
    have = [f"{n} {name.replace('_', ' ')}" for name, n in belongings(world.inventory).items()]
    status = ", ".join(f"{name} {world.inventory[name]}" for name in VITALS)
    lines = [
        f"You see: {', '.join(seen) or 'nothing'}.",
        f"You face {direction}: {ahead}.",
        f"You are at {status}, of 9 each.",
        f"You have: {', '.join(have) or 'nothing'}.",
    ]
    if world.player.sleeping:
        lines.append("You are asleep and will not act until you wake up.")
    if world.light < 0.5:
        lines.append("It is dark.")
    return "\n".join(lines)
