"""Which continuations of an iteration's episodes an estimator wants to be played."""

from dataclasses import dataclass

from vagentrl.advantages.discounts import check_discounts
from vagentrl.errors import ConfigError


@dataclass(frozen=True)
class Continuations:
    """The continuations to play from the turns of each episode.

    A continuation replays the episode's first turns from its seeds and replies, and lets the
    current policy play on from there. Its return estimates the value of that state.

    Attributes:
        count: Continuations from each chosen turn (K of VinePPO).
        every: Chosen are the turns ``c``, ``c + every``, …, with ``c`` drawn for each episode from
            1 to ``every``. Which turns are chosen does not depend on what the agent does, so that
            the choice adds no bias. Turn 0 is never chosen: the members of a group are
            continuations from it.
        horizon: Turns after which a continuation is cut; None plays it to its end.
        turn_gamma: Discount from turn to turn in the return of a continuation.

    Raises:
        ConfigError: When a number is below 1, or ``turn_gamma`` not between 0 and 1.
    """

    count: int
    every: int
    horizon: int | None
    turn_gamma: float

    def __post_init__(self) -> None:
        check_discounts(turn_gamma=self.turn_gamma)
        counts = {"continuations": self.count, "every": self.every, "horizon": self.horizon}
        for name, number in counts.items():
            if number is not None and number < 1:
                raise ConfigError(f"{name} is {number}; give 1 or more")
