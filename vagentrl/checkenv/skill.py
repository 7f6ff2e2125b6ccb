"""Measures what random play, a constant reply and the oracle earn, and how fast episodes are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from statistics import mean, median

from vagentrl.checkenv.bench import (
    MOST_TURNS,
    Bench,
    actions_per_turn,
    plan_of,
    random_actions,
    reply_with,
    reset,
    step,
)
from vagentrl.checkenv.oracle import best_plan, check_oracle
from vagentrl.checkenv.report import Checked, Finding, Rate, Skill, failed, passed, unchecked
from vagentrl.environment import ActionEnvironment, Environment, seed_of
from vagentrl.types import Observation, Reply, StepResult

CANDIDATES = 16
"""Most constant replies that are tried."""
AS_GOOD = 0.95
"""Share of the oracle's success from which a policy that sees nothing is as good."""

Policy = Callable[[Environment], Reply]


class _Clock:
    """Times resets and steps, and remembers the largest observation."""

    def __init__(self) -> None:
        self.resets: list[float] = []
        self.steps: list[float] = []
        self.characters = 0
        self.pixels: tuple[int, int] | None = None

    def see(self, observation: Observation) -> None:
        self.characters = max(self.characters, len(observation.text))
        sizes = [image.size for image in observation.images]
        if sizes:
            largest = max(sizes, key=lambda size: size[0] * size[1])
            self.pixels = max(self.pixels or (0, 0), largest)


def check_skill(bench: Bench) -> Checked:
    """Compare play that does not look with play that knows the state."""
    environment, clock = bench.environment, _Clock()
    held_out = [seed_of("validation", index) for index in range(bench.effort.plays)]
    rng = Random(0)
    random = None
    reset(environment, seed_of("train", 0))
    if random_actions(environment, rng) is not None:
        random = _rate(bench, lambda e: _random_reply(e, rng), held_out, clock, share=0.3)
    oracle_finding, oracle = check_oracle(bench)
    constant, text = _best_constant(bench, clock)
    skill = Skill(
        random,
        constant,
        text,
        oracle,
        steps_per_s=1 / max(mean(clock.steps), 1e-9),
        reset_ms=1000 * median(clock.resets),
        characters=clock.characters,
        pixels=clock.pixels,
    )
    findings = (
        oracle_finding,
        _blind("random play", random, oracle),
        _constant(skill),
        _blind("fixed plan", best_plan(bench), oracle),
    )
    return Checked(findings, skill=skill)


def _random_reply(environment: Environment, rng: Random) -> Reply:
    return reply_with(environment, random_actions(environment, rng) or ())


def _rate(
    bench: Bench, policy: Policy, seeds: Iterable[int], clock: _Clock | None, share: float
) -> Rate | None:
    """Play episodes by a policy, for as long as the time lasts; None if none was finished."""
    episodes = []
    deadline = time.monotonic() + share * bench.effort.seconds
    for seed in bench.within_time(seeds, share):
        results = list(_play(bench.environment, policy, seed, clock, deadline))
        if results and (results[-1].terminated or results[-1].truncated):
            episodes.append(results)
    if not episodes:
        return None
    solved = [results[-1].metrics.get("success") for results in episodes]
    known = [float(success) for success in solved if success is not None]
    return Rate(
        success=None if len(known) < len(solved) else mean(known),
        mean_return=mean(sum(result.reward for result in results) for results in episodes),
        turns=mean(map(len, episodes)),
        episodes=len(episodes),
    )


def _play(
    environment: Environment, policy: Policy, seed: int, clock: _Clock | None, deadline: float
) -> Iterator[StepResult]:
    started = time.perf_counter()
    observation = reset(environment, seed, transition_seed=seed)
    reset_s = time.perf_counter() - started
    if clock is not None:
        clock.resets.append(reset_s)
        clock.see(observation)
    for _ in range(MOST_TURNS):
        reply = policy(environment)
        started = time.perf_counter()
        result = step(environment, reply)
        if clock is not None:
            clock.steps.append(time.perf_counter() - started)
            clock.see(result.observation)
        yield result
        if result.terminated or result.truncated or time.monotonic() > deadline + 5:
            return


def _best_constant(bench: Bench, clock: _Clock) -> tuple[Rate | None, str]:
    """The reply that earns most when it is given in every turn: chosen on training seeds, measured
    on held-out ones."""
    candidates = _candidates(bench)
    seeds = [seed_of("train", index) for index in range(max(4, bench.effort.plays // 4))]
    share = 0.4 / len(candidates)
    rated = []
    for candidate in candidates:
        rate = _rate(bench, lambda _, reply=candidate: reply, seeds, clock, share)
        if rate is not None:
            rated.append(((rate.success or 0.0, rate.mean_return), candidate))
    if not rated:
        return None, ""
    best = max(rated, key=lambda pair: pair[0])[1]
    held_out = [seed_of("validation", index) for index in range(bench.effort.plays)]
    return _rate(bench, lambda _: best, held_out, clock, share=0.2), best.text


def _candidates(bench: Bench) -> list[Reply]:
    """Replies that may earn something without looking: nothing, every single action, and what
    random play and the oracle say most often."""
    environment, counts, rng = bench.environment, Counter[tuple[str, ...]](), Random(0)
    for index in bench.within_time(range(50), share=0.1):
        reset(environment, seed_of("train", index))
        drawn = [random_actions(environment, rng) for _ in range(4)]
        plan = plan_of(environment)
        if plan:
            drawn.append(plan[: actions_per_turn(environment)])
        counts.update(actions for actions in drawn if actions)
    chosen: list[tuple[str, ...]] = []
    if isinstance(environment, ActionEnvironment):
        chosen = [(name,) * environment.actions_per_turn for name in environment.action_names]
    chosen += sorted(counts, key=lambda actions: (-counts[actions], actions))
    different = list(dict.fromkeys(chosen))[:CANDIDATES]
    return [Reply("", problem="the reply is empty")] + [
        reply_with(environment, actions) for actions in different
    ]


def _constant(skill: Skill) -> Finding:
    finding = _blind("constant reply", skill.constant, skill.oracle)
    if skill.constant is None:
        return finding
    said = f"; the best is {skill.constant_reply[:80]!r}"
    return Finding(
        finding.check, finding.verdict, finding.seen + said, finding.wanted, finding.advice
    )


def _blind(name: str, rate: Rate | None, oracle: Rate | None) -> Finding:
    """Judge a policy that does not look: it must not be as good as one that knows the state."""
    if rate is None:
        reason = "random_actions or oracle is None, or no episode ended in time"
        return unchecked(name, reason)
    seen = f"{rate}: success (return) in {rate.episodes} episodes of {rate.turns:.1f} turns"
    if rate.success is None:
        return passed(name, seen)
    best = (oracle and oracle.success) or 1.0  # an oracle that never succeeds has its own finding
    if rate.success >= AS_GOOD * best:
        return failed(
            name,
            seen,
            f"less than the oracle's {best:.0%}: who looks must do better than who does not",
            "draw initial states that need different actions",
        )
    return passed(name, seen)
