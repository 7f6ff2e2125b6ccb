"""``vagentrl warmstart``: make a tiny model that can see and speak, by cloning a demonstrator.

The demonstrator knows the true state and says it truly, in the reply format of the environment; it
acts by the environment's oracle, but some of the time at random. A model that clones it perceives
and speaks well, and plans badly: a starting point for reinforcement learning.
"""

from vagentrl.cli.warmstart.cloning import Stage
from vagentrl.cli.warmstart.command import run_warmstart
from vagentrl.cli.warmstart.demonstrator import Demonstration, Demonstrator, demonstrate
from vagentrl.cli.warmstart.evaluation import perception

__all__ = [
    "Demonstration",
    "Demonstrator",
    "Stage",
    "demonstrate",
    "perception",
    "run_warmstart",
]
