"""Checks of the initial states: how many there are, and whether the splits share any."""

from __future__ import annotations

from collections.abc import Hashable
from typing import get_args

from vagentrl.checkenv.bench import Bench, reset
from vagentrl.checkenv.report import Checked, Finding, StateCounts, failed, passed, unchecked
from vagentrl.environment import Split, seed_of

FEW = 8
"""Fewer different initial states than this in a split are too few for a success rate."""

NAMES: tuple[Split, ...] = get_args(Split)


def check_initial_states(bench: Bench) -> Checked:
    """Count different initial states, and those that held-out seeds share with training."""
    environment = bench.environment
    found: dict[Split, set[Hashable]] = {split: set() for split in NAMES}
    tried = 0
    for index in bench.within_time(range(bench.effort.states)):
        for split in NAMES:
            environment.at_iteration(0)
            state = environment.initial_state(seed_of(split, index))
            if state is None:
                reason = "initial_state() is None, so nothing tells states apart"
                return Checked((unchecked("initial states", reason),))
            if index < FEW and state != environment.initial_state(seed_of(split, index)):
                return Checked((_no_value(state),))
            if not isinstance(state, Hashable):
                seen = f"initial_state() is a {type(state).__name__}"
                wanted = "a value that can be compared by its hash"
                advice = "return a string, a tuple or a State"
                return Checked((failed("initial states", seen, wanted, advice),))
            found[split].add(state)
        tried += 1
    held_out = found["validation"] | found["test"]
    counts = StateCounts(
        tried, {split: len(found[split]) for split in NAMES}, len(held_out & found["train"])
    )
    both = len(found["validation"] & found["test"])
    return Checked((_enough(counts), _disjoint(counts, both, bench)), states=counts)


def _no_value(state: object) -> Finding:
    seen = f"two calls of initial_state() for one seed differ; the first gave {state!r:.80}"
    advice = "return a string, a tuple or a State, which equals another one of the same content"
    return failed("initial states", seen, "the same initial state", advice)


def _enough(counts: StateCounts) -> Finding:
    name = "initial states"
    seen = f"{counts} different ones under {counts.tried:,} seeds of {', '.join(NAMES)}"
    if min(counts.distinct.values()) < min(FEW, counts.tried):
        advice = "draw more of the initial state from the seed"
        return failed(name, seen, f"at least {FEW} in each split", advice)
    return passed(name, seen)


def _disjoint(counts: StateCounts, both: int, bench: Bench) -> Finding:
    name = "splits"
    if counts.drawn_in_training or both:
        return failed(
            name,
            f"training draws {counts.drawn_in_training} of the held-out initial states; validation "
            f"and test share {both}",
            "no initial state in two splits",
            "draw until split_of_state(state) == split_of(seed), both from vagentrl.environment",
        )
    alike, of = _shared_views(bench)
    seen = "no initial state is in two splits"
    if alike:
        seen += f"; {alike} of {of} held-out first observations look like one of training"
    return passed(name, seen)


def _shared_views(bench: Bench) -> tuple[int, int]:
    """How many first observations of held-out seeds occur in training too, and of how many."""
    environment = bench.environment
    seen: dict[Split, set[Hashable]] = {split: set() for split in NAMES}
    for index in bench.within_time(range(bench.effort.states // 4 + 1), share=0.3):
        for split in NAMES:
            first = reset(environment, seed_of(split, index))
            seen[split].add((first.text, *(image.tobytes() for image in first.images)))
    held_out = seen["validation"] | seen["test"]
    return len(held_out & seen["train"]), len(held_out)
