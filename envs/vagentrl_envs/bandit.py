"""A two-armed bandit whose arms have names that suggest their risk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from vagentrl.environment import ActionEnvironment, Outcome, Split, split_of
from vagentrl.errors import ConfigError
from vagentrl.spellings import Spellings
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
"""Every name occurs once, and every risky name sounds riskier than any steady one."""


class Bandit(ActionEnvironment):
    """Pull one of two arms, once.

    The steady arm pays ``steady_reward`` every time, the risky one ``risky_reward`` with
    probability ``risky_chance`` and otherwise nothing: by default 0.1 against 0.25 on average.
    The arm whose name sounds risky is the risky one. Success is pulling the arm that pays more on
    average, whatever it paid this time. The names of the arms and their order are drawn from the
    seed. Training, validation and test share no pair of names.

    Args:
        pairing: ``fixed`` uses the 60 pairs in `PAIRS`, so that all names in held-out episodes are
            new, which tests whether the agent understands their meaning. ``mixed`` combines any
            steady name with any risky one, so that held-out pairs are new combinations of known
            names, which a model without pretrained language can learn too.
        steady_reward: Reward of the steady arm.
        risky_reward: Reward of the risky arm when it pays.
        risky_chance: Probability that the risky arm pays.
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
                f"default_action is {self.default_action!r}, but the arms have different names in "
                "every episode; set invalid_action to skip"
            )
        if not 0 <= risky_chance <= 1:
            raise ConfigError(f"risky_chance is {risky_chance}; give a probability from 0 to 1")
        if steady_reward == risky_chance * risky_reward:
            raise ConfigError(
                f"both arms pay {steady_reward} on average, so neither is better; change "
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
        # The episode ends after one turn, also after a malformed reply.
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
        self._spellings = Spellings(self.action_names, self.aliases)
        # Trailing zeros do not change a seed, so the 1 separates this stream from the names'.
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
    """A `Bandit` with misleading names: the arm whose name sounds risky is the steady one.

    The agent must unlearn what the words suggest.
    """

    misleading = True


def _draw(rng: np.random.Generator, pairing: str, split: Split) -> Pair:
    """Draw a pair of names of a split.

    The last digit of a pair's number decides its split: 0 is validation, 5 is test, and the others
    are training. The number of a fixed pair is its index in `PAIRS`; the number of a mixed pair is
    the sum of the indices of its two names.
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
"""The remainders and the divisor that define the numbers of each split's pairs."""
