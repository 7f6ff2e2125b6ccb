"""Checks that seeds and replies determine an episode."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from random import Random
from typing import get_args

from vagentrl.checkenv.bench import Bench, draw_actions, plan_of, reply_with, reset, step
from vagentrl.checkenv.report import Checked, Finding, failed, passed, unchecked
from vagentrl.environment import Environment, Split, seed_of
from vagentrl.rollout.workers import state_of
from vagentrl.types import Observation, Reply, StepResult

EPISODES = 6
TURNS = 30
SPLITS: tuple[Split, ...] = get_args(Split)
MALFORMED = Reply("I give up", problem="no <answer>")


@dataclass(frozen=True)
class Shown:
    """All that an environment tells in one turn; images as hashes of mode, size and bytes."""

    text: str
    hint: str
    images: tuple[str, ...]
    state: tuple[str, ...] | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    metrics: tuple[tuple[str, str], ...] = ()  # as text, in which nan is like nan


Trace = tuple[Shown, ...]


def trace(environment: Environment, seed: int, transition_seed: int) -> Trace:
    """Play the first turns of an episode: mostly at random, sometimes as the oracle does, sometimes
    with a malformed reply."""
    return tuple(_moments(environment, seed, transition_seed))


def _moments(environment: Environment, seed: int, transition_seed: int):
    rng = Random(seed)
    yield shown(environment, reset(environment, seed, transition_seed))
    for _ in range(TURNS):
        result = step(environment, _reply(environment, rng))
        yield shown(environment, result.observation, result)
        if result.terminated or result.truncated:
            return


def _reply(environment: Environment, rng: Random) -> Reply:
    luck = rng.random()
    actions = draw_actions(environment, rng)
    if luck < 0.1:
        return MALFORMED
    if luck < 0.3:
        plan = plan_of(environment)
        actions = plan[:1] if plan else actions
    return reply_with(environment, actions)


def shown(
    environment: Environment, observation: Observation, result: StepResult | None = None
) -> Shown:
    """What the environment tells now."""
    state = state_of(environment)
    told = Shown(
        text=observation.text,
        hint=observation.hint,
        images=tuple(
            hashlib.blake2b(f"{image.mode}{image.size}".encode() + image.tobytes()).hexdigest()
            for image in observation.images
        ),
        state=None if state is None else (state.natural, state.structured, state.symbolic),
    )
    if result is None:
        return told
    return Shown(
        told.text,
        told.hint,
        told.images,
        told.state,
        float(result.reward),
        bool(result.terminated),
        bool(result.truncated),
        tuple((name, repr(float(value))) for name, value in sorted(result.metrics.items())),
    )


def traces(bench: Bench) -> tuple[Trace, ...]:
    """The traces of some seeds of every split, played in a new environment one after the other."""
    environment = bench.make()
    try:
        return tuple(trace(environment, *seeds) for seeds in _seeds())
    finally:
        environment.close()


def openings(bench: Bench) -> tuple[Shown, ...]:
    """The beginning of many episodes: far more states than whole episodes would visit."""
    environment = bench.make()
    try:
        return tuple(
            shown(environment, reset(environment, seed_of(split, index)))
            for index in bench.within_time(range(bench.effort.states), share=0.5)
            for split in SPLITS
        )
    finally:
        environment.close()


def _seeds() -> list[tuple[int, int]]:
    return [(seed_of(SPLITS[i % 3], i // 3), 1000 + i) for i in range(EPISODES)]


def compare_processes(
    here: tuple[Trace, ...],
    there: tuple[Trace, ...],
    begun_here: tuple[Shown, ...],
    begun_there: tuple[Shown, ...],
) -> Finding:
    """Compare traces and openings of two processes with different hash seeds."""
    difference = _first_difference(here, there) or _other_opening(begun_here, begun_there)
    name = "the same in two processes"
    if difference is None:
        turns, begun = sum(map(len, here)), min(len(begun_here), len(begun_there))
        seen = f"{len(here)} episodes of {turns} turns and the beginnings of {begun}"
        return passed(name, f"{seen}: text, images, rewards, states")
    return failed(
        name,
        difference,
        "the same text, images, rewards, flags, metrics and state",
        "draw from np.random.default_rng((seed, transition_seed)) only; sort sets before use; do "
        "not use hash(), id(), the time or a global generator",
    )


def _first_difference(here: tuple[Trace, ...], there: tuple[Trace, ...]) -> str | None:
    for (seed, _), one, other in zip(_seeds(), here, there, strict=True):
        for turn, (a, b) in enumerate(zip(one, other, strict=False)):
            for field in fields(Shown):
                x, y = getattr(a, field.name), getattr(b, field.name)
                if x != y:
                    return f"seed {seed}, turn {turn}: {field.name} is {_short(x)} and {_short(y)}"
        if len(one) != len(other):
            return f"seed {seed}: {len(one) - 1} turns and {len(other) - 1}"
    return None


def _other_opening(here: tuple[Shown, ...], there: tuple[Shown, ...]) -> str | None:
    """Openings differ; one process may have had the time for more of them."""
    for number, (one, other) in enumerate(zip(here, there, strict=False)):
        for field in fields(Shown):
            x, y = getattr(one, field.name), getattr(other, field.name)
            if x != y:
                seed = seed_of(SPLITS[number % 3], number // 3)
                return f"seed {seed}, at the start: {field.name} is {_short(x)} and {_short(y)}"
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 90 else text[:87] + "…"


def check_independence(bench: Bench) -> Checked:
    """An episode depends neither on earlier ones nor on environments beside it."""
    if not bench.environment.replays:
        reason = "its `replays` is False: episodes cannot be repeated"
        return Checked((unchecked("earlier episodes", reason), unchecked("neighbours", reason)))
    return Checked((_earlier_episodes(bench), _neighbours(bench)))


def _earlier_episodes(bench: Bench) -> Finding:
    forwards = traces(bench)
    environment = bench.make()
    backwards = tuple(reversed([trace(environment, *seeds) for seeds in reversed(_seeds())]))
    environment.close()
    difference = _first_difference(forwards, backwards)
    if difference is None:
        return passed("earlier episodes", "they leave no trace in later ones")
    advice = "set everything up anew in reset, the generators too"
    wanted = "the same episode, whatever was played before it"
    return failed("earlier episodes", difference, wanted, advice)


def _neighbours(bench: Bench) -> Finding:
    """Play two environments in turns, as threads of one process may."""
    alone = traces(bench)
    first, second = bench.make(), bench.make()
    beside = []
    for seeds, others in zip(_seeds(), reversed(_seeds()), strict=True):
        neighbour = _moments(second, *others)
        told = []
        for moment in _moments(first, *seeds):
            told.append(moment)
            next(neighbour, None)
        beside.append(tuple(told))
    first.close()
    second.close()
    difference = _first_difference(alone, tuple(beside))
    if difference is None:
        return passed("neighbours", "two environments of one process do not disturb each other")
    advice = "keep generators and tables on the instance, not on the class, the module or `random`"
    return failed("neighbours", difference, "the same episode beside another environment", advice)


def check_group(bench: Bench) -> Checked:
    """The members of a group start from the same state."""
    name, environment = "members of a group", bench.environment
    for index in bench.within_time(range(20)):
        seed = seed_of("train", index)
        first = shown(environment, reset(environment, seed, 1))
        second = shown(environment, reset(environment, seed, 2))
        if first != second:
            difference = next(
                f.name for f in fields(Shown) if getattr(first, f.name) != getattr(second, f.name)
            )
            pair = f"{_short(getattr(first, difference))} and {_short(getattr(second, difference))}"
            return Checked((failed(
                name,
                f"seed {seed}, transition seeds 1 and 2: {difference} is {pair}",
                "the same first observation and state for every transition seed",
                "draw the initial state from `seed` alone, the luck on the way from "
                "(seed, transition_seed)",
            ),))  # fmt: skip
    return Checked((passed(name, "they start alike whatever their transition seed"),))
