"""Lets adversaries try to be paid for claims, and prints what each earns beside an honest agent.

    python scripts/judge_league.py [--episodes 8] [--defences ExactState RelationF1] [--worst]

Every strategy of `tests/league/strategies.py` plays Sokoban and FrozenLake with random actions and
writes its claims in words, JSON and symbols. All strategies know where an object is with the same
probability as the honest agent. The numbers are mean rewards of a turn for observations and for
predictions, each at most 1. `--worst` prints the best result of each adversary over worlds and
representations, less the honest agent's there, instead of the whole table; adversaries that observe
honestly and claim that nothing changes are compared by their predictions alone.
"""

from __future__ import annotations

import argparse
from itertools import product

from tests.league.league import DEFENCES, MARGIN, REPRESENTATIONS, SKILL, earned, gamed
from tests.league.strategies import ADVERSARIES, honest
from tests.league.worlds import WORLDS

PLAYED = ("Sokoban", "FrozenLake")


Gains = dict[str, list[dict[str, float]]]


def results(defence: str, episodes: int, skill: float) -> Gains:
    """What each strategy earns in every world and representation; ``honest`` is the first."""
    cells = list(product(PLAYED, REPRESENTATIONS))
    return {
        name: [
            earned(
                strategy, WORLDS[world], representation, DEFENCES[defence],
                episodes=episodes, skill=skill,
            )
            for world, representation in cells
        ]
        for name, strategy in {"honest": honest, **ADVERSARIES}.items()
    }  # fmt: skip


def print_table(defence: str, found: Gains) -> None:
    titles = [f"{world}, {kind}" for world, kind in product(PLAYED, REPRESENTATIONS)]
    print(f"\n{defence}\n\n| strategy | {' | '.join(titles)} |")
    print("|---" * (len(titles) + 1) + "|")
    for name, row in found.items():
        cells = (f"{gain['observation']:.2f} / {gain['prediction']:.2f}" for gain in row)
        print(f"| {name} | {' | '.join(cells)} |")


def margins(found: Gains) -> dict[str, float]:
    """For each adversary, what it earns more than the honest agent, where that is most."""
    fair = found["honest"]
    return {
        name: max(
            gamed(name, gain) - gamed(name, other) for gain, other in zip(row, fair, strict=True)
        )
        for name, row in found.items()
        if name != "honest"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Let adversaries try to be paid for claims.")
    parser.add_argument("--episodes", type=int, default=8, help="episodes of each of two batches")
    parser.add_argument("--skill", type=float, default=SKILL)
    parser.add_argument("--defences", nargs="*", default=list(DEFENCES), choices=list(DEFENCES))
    parser.add_argument("--worst", action="store_true")
    arguments = parser.parse_args()
    won: list[str] = []
    summary: dict[str, dict[str, float]] = {}
    for defence in arguments.defences:
        found = results(defence, arguments.episodes, arguments.skill)
        summary[defence] = margins(found)
        if not arguments.worst:
            print_table(defence, found)
        if DEFENCES[defence].holds:
            won += [f"{n} ({defence})" for n, m in summary[defence].items() if m > -MARGIN]
    if arguments.worst:
        print(f"| adversary | {' | '.join(summary)} |\n" + "|---" * (len(summary) + 1) + "|")
        for name in ADVERSARIES:
            cells = " | ".join(f"{each[name]:+.2f}" for each in summary.values())
            print(f"| {name} | {cells} |")
    print(f"\nless than {MARGIN} below the honest agent: {', '.join(won) or 'none'}")


if __name__ == "__main__":
    main()
