"""What an agent earns that reads nothing: the same actions in every episode, one in a turn.

    python scripts/blind_play.py frozen_lake babyai baba
    python scripts/blind_play.py crafter --actions 'do, do, do, place plant'

Without `--actions` it looks for good ones by changing some at random, on training seeds. Prints a
Markdown table of success, with its 95 % interval, and return on held-out seeds. Whatever a trained
agent earns beyond that, it has read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import cycle
from random import Random
from statistics import mean

import yaml
from tqdm import trange

from vagentrl.cli.plugins import load_plugins
from vagentrl.cli.recipe_environments import worlds_of
from vagentrl.cli.recipes import find_config
from vagentrl.environment import ActionEnvironment, Environment, seed_of
from vagentrl.rollout.report import success_interval
from vagentrl.types import Reply

SEARCHED = 48
"""Training seeds on which actions are compared."""
STARTS = 24
"""Random actions, and plans, with which the search begins."""


def play(environment: Environment, seed: int, actions: Sequence[str]) -> tuple[float, float]:
    """Success and return of an episode; the actions are repeated until it ends."""
    environment.reset(seed, seed)
    earned = 0.0
    for action in cycle(actions):
        result = environment.step(Reply("", actions=(action,)))
        earned += result.reward
        if result.terminated or result.truncated:
            return result.metrics.get("success", 0.0), earned
    raise ValueError("there are no actions")


def rate(environment: Environment, seeds: Sequence[int], actions: Sequence[str]) -> list[float]:
    """Mean success and return."""
    played = [play(environment, seed, actions) for seed in seeds]
    return [mean(each) for each in zip(*played, strict=True)]


def search(environment: ActionEnvironment, trials: int) -> list[str]:
    """Good actions for every turn of an episode.

    The best of random ones and of the oracle's plans for single seeds is changed by hill climbing.
    """
    rng, names = Random(0), environment.action_names
    seeds = [seed_of("train", index) for index in range(SEARCHED)]
    turns = environment.turn_limit
    starts = [rng.choices(names, k=turns) for _ in range(STARTS)]
    for seed in seeds[:STARTS]:
        environment.reset(seed, seed)
        plan = environment.oracle()
        if plan:
            starts.append([action for action, _ in zip(cycle(plan), range(turns), strict=False)])
    found, best = max((rate(environment, seeds, start), start) for start in starts)
    for _ in trange(trials, desc=type(environment).__name__, file=sys.stderr, leave=False):
        other = list(best)
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            place = rng.randrange(len(other))
            if rng.random() < 0.5:
                other[place] = rng.choice(names)
            else:  # all that follows comes a turn later, or earlier
                other.insert(place, rng.choice(names))
                other.pop(rng.randrange(len(other)))
        reached = rate(environment, seeds, other)
        if reached >= found:
            best, found = other, reached
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", help="recipes, as --config takes them")
    parser.add_argument("--actions", help="what to play, separated by commas, again and again")
    parser.add_argument("--trials", type=int, default=400, help="changes that are tried")
    parser.add_argument("--episodes", type=int, default=400)
    given = parser.parse_args()
    load_plugins(with_engines=False)
    print("| recipe | environment | success | return | actions |\n|---|---|--:|--:|---|")
    for recipe in given.recipes:
        config = yaml.safe_load(find_config(recipe).read_text(encoding="utf-8"))
        for name, make in worlds_of(config, "train"):
            environment = make()
            if given.actions:
                actions = [action.strip() for action in given.actions.split(",")]
            elif isinstance(environment, ActionEnvironment):
                actions = search(environment, given.trials)
            else:
                raise SystemExit(f"{recipe}: {name} names no actions; give --actions")
            held_out = [seed_of("validation", index) for index in range(given.episodes)]
            success, earned = rate(environment, held_out, actions)
            low, high = success_interval(success * given.episodes, given.episodes)
            said = ", ".join(actions[:12]) + (", …" if len(actions) > 12 else "")
            print(
                f"| {recipe} | {name} | {success:.2f} ({low:.2f} to {high:.2f}) | {earned:.2f} | "
                f"{said} |",
                flush=True,
            )
            environment.close()


if __name__ == "__main__":
    main()
