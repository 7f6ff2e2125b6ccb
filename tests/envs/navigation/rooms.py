"""Rooms that are made by hand."""

from vagentrl_envs.navigation.house import House, Thing
from vagentrl_envs.navigation.kinds import DOORWAY, KINDS

KIND = {kind.name: kind for kind in KINDS}


def room(*things: tuple[str, float, float], points: int = 8, step: float = 0.5) -> House:
    """A square room with these things, the first of which is looked for."""
    placed = tuple(Thing(KIND[name], x, y) for name, x, y in things)
    return House(step, points, ((0, 0),), (), placed, (0,), 0)


def two_rooms(*things: tuple[str, float, float]) -> House:
    """Two rooms of 4 × 4 m, one east of the other; the doorway is 1 to 2 m north of the corner."""
    placed = tuple(Thing(KIND[name], x, y) for name, x, y in things)
    doorway = Thing(DOORWAY, 4.0, 1.5)
    gap = ((0, 0), (0, 1), 2)
    return House(0.5, 8, ((0, 0), (0, 1)), (gap,), (*placed, doorway), (0, 1), 0)
