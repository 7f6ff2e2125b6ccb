"""Checks that the oracle reaches what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from vagentrl.checkenv.bench import (
    MOST_TURNS,
    Bench,
    actions_per_turn,
    plan_of,
    reply_with,
    reset,
    step,
)
from vagentrl.checkenv.report import Finding, Rate, failed, passed, unchecked
from vagentrl.environment import Environment, Split, seed_of
from vagentrl.types import StepResult

PLANS = 20
"""Most plans that are tried as plans for every episode."""
SPLITS: tuple[Split, ...] = ("validation", "train")


def check_oracle(bench: Bench) -> tuple[Finding, Rate | None]:
    """Play the oracle's plans from the start to the end of episodes.

    Where luck decides transitions too, a plan made at the start may fail. The oracle is then asked
    again in every turn, and need not always succeed.
    """
    name, environment = "oracle", bench.environment
    played: list[tuple[int, list[StepResult]]] = []
    luck = False
    for index in bench.within_time(range(bench.effort.plays), share=0.5):
        seed = seed_of(SPLITS[index % 2], index // 2)
        reset(environment, seed, seed)
        plan = plan_of(environment)
        if plan is None and not played:
            return unchecked(name, "oracle() is None"), None
        if not plan:
            seen = f"oracle() is {plan!r} at the start of seed {seed}"
            advice = "draw initial states that can be solved within the limits"
            return failed(name, seen, "a plan", advice), None
        results = list(_play_plan(environment, plan)) if not luck else []
        if not luck and not _solved(results) and _is_lucky(environment, seed, plan):
            luck = True
        if luck:
            results = list(play_oracle(environment, seed))
        played.append((seed, results))
        if not luck and not _solved(results):
            return _missed(seed, plan, results), _rate(played)
    rate = _rate(played)
    how = "asked in every turn, since luck decides too" if luck else "plans played to the end"
    return passed(name, f"{rate} in {rate.episodes} episodes, {how}"), rate


def best_plan(bench: Bench) -> Rate | None:
    """The plan that earns most when it is played in every episode without looking.

    The plans are those of the oracle under some training seeds; the best is chosen on others, and
    measured on held-out ones. None if there is no plan.
    """
    environment = bench.environment
    plans: dict[tuple[str, ...], None] = {}
    for index in bench.within_time(range(PLANS), share=0.1):
        reset(environment, seed_of("train", index))
        if plan := plan_of(environment):
            plans[plan] = None
    if not plans:
        return None
    others = [seed_of("train", PLANS + index) for index in range(PLANS)]
    held_out = [seed_of("validation", index) for index in range(bench.effort.plays)]
    share = 0.2 / len(plans)
    rated = {plan: _rate_of(bench, plan, others, share) for plan in plans}
    best = max(rated, key=lambda plan: (rated[plan].success or 0.0, rated[plan].mean_return))
    return _rate_of(bench, best, held_out, share=0.2)


def _rate_of(bench: Bench, plan: tuple[str, ...], seeds: list[int], share: float) -> Rate:
    """What a plan earns that is played whatever there is to see."""
    played: list[tuple[int, list[StepResult]]] = []
    for seed in bench.within_time(seeds, share):
        reset(bench.environment, seed, seed)
        played.append((seed, list(_play_plan(bench.environment, plan))))
    return _rate(played)


def _play_plan(environment: Environment, plan: tuple[str, ...]) -> Iterator[StepResult]:
    """Play a plan in replies of as many actions as a turn may have."""
    size = actions_per_turn(environment)
    for start in range(0, len(plan), size):
        result = step(environment, reply_with(environment, plan[start : start + size]))
        yield result
        if result.terminated or result.truncated:
            return


def play_oracle(environment: Environment, seed: int) -> Iterator[StepResult]:
    """Play an episode, and ask the oracle again in every turn; nothing if it has no plan."""
    reset(environment, seed, seed)
    if not plan_of(environment):
        return
    for _ in range(MOST_TURNS):
        plan = (plan_of(environment) or ())[: actions_per_turn(environment)]
        result = step(environment, reply_with(environment, plan))
        yield result
        if result.terminated or result.truncated:
            return


def _is_lucky(environment: Environment, seed: int, plan: tuple[str, ...]) -> bool:
    """Whether the same plan leads elsewhere under other transition seeds."""
    ends = set()
    for transition_seed in range(8):
        reset(environment, seed, transition_seed)
        results = list(_play_plan(environment, plan))
        ends.add(tuple((result.reward, result.observation.text) for result in results))
    return len(ends) > 1


def _solved(results: list[StepResult]) -> bool:
    return bool(results) and results[-1].metrics.get("success") == 1


def _missed(seed: int, plan: tuple[str, ...], results: list[StepResult]) -> Finding:
    last = results[-1]
    if last.metrics.get("success") is None:
        end = "the metrics have no `success`"
    elif last.truncated:
        end = f"a limit ended the episode after {len(results)} turns"
    elif last.terminated:
        end = f"the episode ended without success in turn {len(results)}"
    else:
        end = f"the episode goes on after all {len(plan)} actions"
    return failed(
        "oracle",
        f"seed {seed}, {' '.join(plan[:12])}{' …' if len(plan) > 12 else ''}: {end}",
        "success at the end of every plan",
        "return the remaining actions to success, or None; keep plans within the limits",
    )


def _rate(played: list[tuple[int, list[StepResult]]]) -> Rate:
    return Rate(
        success=mean(float(_solved(results)) for _, results in played),
        mean_return=mean(sum(result.reward for result in results) for _, results in played),
        turns=mean(len(results) for _, results in played),
        episodes=len(played),
    )
