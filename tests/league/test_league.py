"""No adversary of the league earns as much as an honest agent of the same skill."""

from functools import cache
from itertools import product

import pytest

from tests.league.league import DEFENCES, MARGIN, REPRESENTATIONS, earned, gamed
from tests.league.strategies import ADVERSARIES, honest
from tests.league.worlds import WORLDS
from vagentrl.types import Representation

HOLDING = [name for name, defence in DEFENCES.items() if defence.holds]
CELLS = list(product(("Sokoban", "FrozenLake"), REPRESENTATIONS))


@cache
def fair(world: str, representation: Representation, defence: str) -> dict[str, float]:
    return earned(honest, WORLDS[world], representation, DEFENCES[defence], episodes=24)


def test_the_league_has_enough_strategies():
    assert len(ADVERSARIES) >= 25


@pytest.mark.parametrize("name", ADVERSARIES)
def test_an_adversary_earns_less_than_an_honest_agent_of_the_same_skill(name: str):
    """Each strategy meets another judge in every world; `scripts/judge_league.py` plays all."""
    number = list(ADVERSARIES).index(name)
    for place, (world, representation) in enumerate(CELLS):
        defence = HOLDING[(number + place) % len(HOLDING)]
        gained = earned(
            ADVERSARIES[name], WORLDS[world], representation, DEFENCES[defence], episodes=16
        )
        paid = gamed(name, gained)
        assert paid < gamed(name, fair(world, representation, defence)) - MARGIN, (
            f"{name} earns {paid:.2f} on {world} in {representation} under {defence}"
        )


def test_without_defences_a_gullible_judge_pays_for_nothing():
    bare, world = DEFENCES["gullible, bare"], WORLDS["Sokoban"]
    vague = earned(ADVERSARIES["constant vague text"], world, "natural", bare, episodes=2)
    fairly = earned(honest, world, "natural", bare, episodes=2)
    assert all(vague[kind] == 1 > fairly[kind] for kind in vague)


def test_an_honest_guess_on_slippery_ice_is_paid():
    world = WORLDS["slippery FrozenLake"]
    paid = earned(honest, world, "structured", DEFENCES["ExactState"], skill=1.0)
    still = earned(
        ADVERSARIES["nothing changes"], world, "structured", DEFENCES["ExactState"], skill=1.0
    )
    assert still["prediction"] == 0 < 0.2 < paid["prediction"]
