"""How much the checker plays before it gives its verdicts."""

from __future__ import annotations

from dataclasses import dataclass

from vagentrl.errors import ConfigError


@dataclass(frozen=True)
class Effort:
    """How many samples each check takes, and for how long.

    A check that runs out of time gives its verdict on the samples that it has, and says how many
    there are.

    Args:
        episodes: Episodes over which memory must not grow.
        states: Seeds of each split whose initial states are compared.
        plays: Episodes behind each success rate.
        seconds: Seconds after which a check takes no further samples.
        patience_s: Seconds beyond that in which a check must have ended; after that the environment
            counts as hanging. A single hostile reply must be answered within these seconds.
    """

    episodes: int = 1000
    states: int = 1024
    plays: int = 100
    seconds: float = 60.0
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ConfigError(f"{name} is {value}; give more than 0")


LONG = Effort()
"""For a verdict to publish: minutes for each environment."""
SHORT = Effort(episodes=60, states=128, plays=20, seconds=3.0, patience_s=30.0)
"""For continuous integration: seconds for each environment."""
