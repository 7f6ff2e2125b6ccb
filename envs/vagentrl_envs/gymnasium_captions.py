"""Captioners of some environments of Gymnasium, to use and to imitate."""

from __future__ import annotations

from typing import Any

TAXI_STOPS = ("red", "green", "yellow", "blue")


def taxi(observation: Any, info: dict[str, Any]) -> str:
    """Tell the state of ``Taxi``: rows and columns are counted from 0 at the top left."""
    rest, destination = divmod(int(observation), 4)
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    where = "in the taxi" if passenger == 4 else f"at the {TAXI_STOPS[passenger]} stop"
    return (
        f"The taxi is at row {row}, column {column}. The passenger is {where} and wants to go to "
        f"the {TAXI_STOPS[destination]} stop."
    )


def cart_pole(observation: Any, info: dict[str, Any]) -> str:
    """Tell the state of ``CartPole`` in whole hundredths."""
    place, speed, angle, turning = (round(100 * float(number)) for number in observation)
    return (
        f"cart position {place}, cart velocity {speed}, pole angle {angle}, pole angular velocity "
        f"{turning} (hundredths; positive is to the right)"
    )


def frozen_lake(observation: Any, info: dict[str, Any]) -> str:
    """Tell the state of ``FrozenLake``: the number of the player's cell, row by row."""
    return f"You are on cell {int(observation)}."
