"""The kinds of things that stand in a house, and their names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of thing.

    Attributes:
        name: Its name, one word.
        symbol: Its symbol on a map.
        width: Metres from side to side.
        height: Metres from the floor to its top.
    """

    name: str
    symbol: str
    width: float
    height: float


FURNITURE = (
    Kind("table", "t", 1.2, 0.8),
    Kind("chair", "c", 0.6, 1.0),
    Kind("sofa", "s", 1.6, 0.9),
    Kind("bed", "b", 1.7, 0.7),
    Kind("shelf", "h", 1.0, 1.9),
    Kind("fridge", "f", 0.8, 1.8),
)
"""What rooms are furnished with; a house may have several of a kind."""

OBJECTS = (
    Kind("ball", "B", 0.7, 0.7),
    Kind("lamp", "L", 0.6, 1.6),
    Kind("plant", "P", 0.8, 1.2),
    Kind("vase", "V", 0.6, 0.9),
    Kind("television", "T", 1.0, 1.1),
    Kind("clock", "C", 0.6, 1.8),
    Kind("guitar", "G", 0.6, 1.2),
    Kind("suitcase", "U", 0.8, 0.8),
)
"""What may be searched for; a house has at most one of a kind."""

DOORWAY = Kind("doorway", "n", 1.0, 2.0)
"""An opening between two rooms. It stands nowhere and hides nothing."""

KINDS = (*FURNITURE, *OBJECTS, DOORWAY)
