"""A bandit with two arms whose names hint at the risk: does the agent learn what pays?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from vagentrl.environment import ActionEnvironment, Outcome, Split, split_of
from vagentrl.errors import ConfigError
from vagentrl.types import Observation, Reply, StepResult


class Pair(NamedTuple):
    """Names of two arms: one sounds steady, the other risky."""

    steady: str
    risky: str


PAIRS = tuple(Pair(*names) for names in (
    ("Librarian", "Gambler"), ("Clerk", "Pirate"), ("Gardener", "Daredevil"),
    ("Tortoise", "Cheetah"), ("Anchor", "Rocket"), ("Bookkeeper", "Speculator"),
    ("Shepherd", "Bullfighter"), ("Baker", "Stuntman"), ("Pension", "Lottery"),
    ("Deposit", "Jackpot"), ("Oak", "Lightning"), ("Harbor", "Hurricane"), ("Meadow", "Volcano"),
    ("Candle", "Fireworks"), ("Pond", "Tsunami"), ("Sheep", "Tiger"), ("Cow", "Shark"),
    ("Snail", "Falcon"), ("Mule", "Stallion"), ("Pigeon", "Vulture"), ("Brick", "Dynamite"),
    ("Granite", "Nitroglycerin"), ("Ladder", "Trapeze"), ("Sidewalk", "Tightrope"),
    ("Bicycle", "Dragster"), ("Barge", "Speedboat"), ("Tractor", "Motorcycle"),
    ("Armchair", "Rollercoaster"), ("Porridge", "Chili"), ("Bread", "Wasabi"),
    ("Umbrella", "Parachute"), ("Thermostat", "Wildfire"), ("Lullaby", "Thunder"),
    ("Drizzle", "Tornado"), ("Pebble", "Meteor"), ("Lantern", "Comet"), ("Notary", "Smuggler"),
    ("Archivist", "Explorer"), ("Janitor", "Astronaut"), ("Accountant", "Buccaneer"),
    ("Postman", "Bandit"), ("Farmer", "Prospector"), ("Monk", "Conqueror"), ("Nurse", "Mercenary"),
    ("Caretaker", "Adventurer"), ("Watchman", "Burglar"), ("Weaver", "Duelist"),
    ("Potter", "Alchemist"), ("Savings", "Casino"), ("Salary", "Windfall"), ("Fence", "Cliff"),
    ("Cellar", "Abyss"), ("Valley", "Avalanche"), ("Puddle", "Whirlpool"), ("Cottage", "Frontier"),
    ("Calendar", "Dice"), ("Ruler", "Roulette"), ("Checkers", "Poker"), ("Hamster", "Cobra"),
    ("Lamb", "Wolf"),
))  # fmt: skip
"""Every name occurs once, and every risky one sounds riskier than any steady one."""


class Bandit(ActionEnvironment):
    """Pull one of two arms, once.

    The steady arm pays ``steady_reward`` every time, the risky one ``risky_reward`` with
    probability ``risky_chance`` and otherwise nothing: by default 0.1 against 0.25 on average.
    The arm whose name sounds risky is the risky one. Success is pulling the arm that pays more on
    average, whatever it paid this time. Which names stand for the arms, and in what order they are
    said, is drawn from the seed. Training, validation and test share no pair of names.

    Args:
        pairing: ``fixed`` keeps to the 60 pairs as they are written, so that held-out names are
            new altogether: do words mean something to the agent? ``mixed`` lets any steady name
            meet any risky one, so that held-out pairs are new combinations of known names: within
            reach of a model without a language.
        steady_reward: What the steady arm pays.
        risky_reward: What the risky arm pays when it does.
        risky_chance: Probability that it does.
        **settings: The settings of ``ActionEnvironment``.
    """

    misleading: ClassVar[bool] = False
    """Whether the arm whose name sounds risky is the steady one."""

    def __init__(
        self,
        pairing: Literal["fixed", "mixed"] = "fixed",
        steady_reward: float = 0.1,
        risky_reward: float = 1.0,
        risky_chance: float = 0.25,
        **settings: Any,
    ) -> None:
        names = [name for pair in PAIRS for name in pair]
        super().__init__(action_names=names, turn_limit=1, actions_per_turn=1, **settings)
        if self.default_action is not None:
            raise ConfigError(
                f"default_action is {self.default_action!r}, but the arms have other names in "
                "every episode; let invalid_action be skip"
            )
        if not 0 <= risky_chance <= 1:
            raise ConfigError(f"risky_chance is {risky_chance}; it is a probability")
        if steady_reward == risky_chance * risky_reward:
            raise ConfigError(
                f"both arms pay {steady_reward} on average, so neither is right; change "
                "steady_reward, risky_reward or risky_chance"
            )
        self.pairing = pairing
        self.steady_reward = steady_reward
        self.risky_reward = risky_reward
        self.risky_chance = risky_chance
        self._steady: str
        self._risky: str
        self._luck: float

    def oracle(self) -> tuple[str, ...]:
        return () if self._over else (self._better,)

    def step(self, reply: Reply) -> StepResult:
        # one turn is the whole game: nothing of value follows, not even a malformed reply
        return replace(super().step(reply), terminated=True, truncated=False)

    def initial_state(self, seed: int) -> tuple[str, ...]:
        self.reset(seed)
        return self.action_names

    @property
    def _better(self) -> str:
        """The arm that pays more on average."""
        risk_pays = self.risky_chance * self.risky_reward > self.steady_reward
        return self._risky if risk_pays else self._steady

    def _start(self, seed: int, transition_seed: int) -> None:
        rng = np.random.default_rng(seed)
        pair = _draw(rng, self.pairing, split_of(seed))
        self._steady, self._risky = reversed(pair) if self.misleading else pair
        self.action_names = pair if rng.random() < 0.5 else (pair.risky, pair.steady)
        self._spellings = {name.casefold(): name for name in self.action_names}
        # trailing zeros do not change a seed: the 1 keeps this apart from the names' stream
        self._luck = np.random.default_rng((seed, transition_seed, 1)).random()

    def _act(self, action: str) -> Outcome:
        pays = self._luck < self.risky_chance
        reward = self.steady_reward if action == self._steady else self.risky_reward * pays
        return Outcome(reward, done=True, success=action == self._better)

    def _observe(self) -> Observation:
        return Observation("The arms are {} and {}.".format(*self.action_names))

    def system_prompt(self) -> str:
        return (
            "You stand before a slot machine with two arms. Each pays by a rule of its own, which "
            "its name may hint at. Pull one, once: the one that pays more on average. Your answer "
            f"is its name.\n{self.format.instructions(self.actions_per_turn)}"
        )


class BanditRev(Bandit):
    """The same with the names swapped: the arm whose name sounds risky is the steady one.

    The hint points the wrong way, so what the words mean must be unlearned.
    """

    misleading = True


def _draw(rng: np.random.Generator, pairing: str, split: Split) -> Pair:
    """A pair of a split.

    The last digit of a pair's number decides: 0 is for validation and 5 for test. The number of a
    mixed pair is the sum of the two numbers that its names have among the fixed ones.
    """
    remainders, divisor = _NUMBERS[split]
    total = int(rng.choice(remainders)) + divisor * int(rng.integers(len(PAIRS) // divisor))
    if pairing == "fixed":
        return PAIRS[total]
    steady = int(rng.integers(len(PAIRS)))
    return Pair(PAIRS[steady].steady, PAIRS[(total - steady) % len(PAIRS)].risky)


_NUMBERS: dict[Split, tuple[tuple[int, ...], int]] = {
    "train": ((1, 2, 3, 4), 5),
    "validation": ((0,), 10),
    "test": ((5,), 10),
}
"""The numbers of each split's pairs: their remainders, and the divisor."""
