"""Checks of what every environment promises: types, ends, errors, resets."""

from __future__ import annotations

from random import Random

from vagentrl.checkenv.bench import (
    Bench,
    actions_per_turn,
    draw_actions,
    plan_of,
    play_at_random,
    reply_with,
    reset,
    step,
)
from vagentrl.checkenv.oracle import play_oracle
from vagentrl.checkenv.report import Checked, Finding, failed, passed, unchecked
from vagentrl.environment import Environment, seed_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.rollout.workers import state_of, traits
from vagentrl.types import IMAGE_PLACEHOLDER, Reply

EPISODES = 5


def check_contract(bench: Bench) -> Checked:
    """Types of what is returned, the system prompt, the ends of episodes, the reply format."""
    environment = bench.environment
    traits(environment)
    return Checked(
        (_system_prompt(environment), _ends(bench), _format_carries_actions(environment))
    )


def _system_prompt(environment: Environment) -> Finding:
    name, prompts = "system prompt", set[str]()
    for index in range(EPISODES):
        reset(environment, seed_of("train", index))
        prompts.add(environment.system_prompt())
    (prompt, *others) = prompts
    if any(IMAGE_PLACEHOLDER in prompt for prompt in prompts):
        seen = f"it contains {IMAGE_PLACEHOLDER}, but it has no images"
        return failed(name, seen, "text only", "show pictures in observations")
    if environment.prompt_varies:
        return passed(name, f"{len(prompts)} different ones under {EPISODES} seeds, as declared")
    if others:
        advice = (
            "tell what differs between episodes in the first observation, or let `prompt_varies` "
            "be True"
        )
        seen = f"{len(prompts)} different ones under {EPISODES} seeds"
        return failed(name, seen, "the same for every episode", advice)
    if not prompt.strip():
        advice = "describe the task, the actions and the reply format"
        return failed(name, "it is empty", "a description of the task", advice)
    return passed(name, f"{len(prompt.split())} words, the same for every episode")


def _ends(bench: Bench) -> Finding:
    name, rng = "ends of episodes", Random(0)
    turns, successes = [], []
    for index in bench.within_time(range(EPISODES), share=0.5):
        results = list(play_at_random(bench.environment, seed_of("train", index), rng))
        solved = list(play_oracle(bench.environment, seed_of("train", index)))
        for last in (results[-1], *solved[-1:]):
            if last.terminated and last.truncated:
                return failed(
                    name,
                    f"both terminated and truncated at the end of seed {seed_of('train', index)}",
                    "terminated if the task is over, truncated if only a limit was reached",
                    "set truncated=False where terminated is true",
                )
            successes.append(last.metrics.get("success"))
        turns.append(len(results))
    strange = [success for success in successes if success not in (0, 1, None)]
    if strange:
        advice = "report a share or a score as a metric of another name"
        return failed(name, f"metrics['success'] is {strange[0]}", "0 or 1", advice)
    told = "without `success` in metrics" if None in successes else "`success` reported"
    return passed(name, f"{min(turns)} to {max(turns)} turns of random play, {told}")


def _format_carries_actions(environment: Environment) -> Finding:
    name, rng = "actions in replies", Random(0)
    reset(environment, seed_of("train", 0))
    plan = plan_of(environment)
    drawn = [draw_actions(environment, rng) for _ in range(20)]
    if plan:
        drawn.append(plan[: actions_per_turn(environment)])
    if not any(drawn):
        return unchecked(name, "neither random_actions nor oracle gives any")
    state = state_of(environment)
    for actions in filter(None, drawn):
        try:
            environment.format.write(actions, observation=state, prediction=state)
        except ConfigError as error:
            advice = "give the format another action_separator, null for free text, or add state()"
            return failed(name, str(error), "actions that the reply format can carry", advice)
    return passed(name, f"{drawn[0]!r} can be written and is read back")


def check_misuse(bench: Bench) -> Checked:
    """A step before the first reset, a step after the end, a reset in the middle."""
    return Checked((_step_too_early(bench), _step_too_late(bench), _reset_in_the_middle(bench)))


def _step_too_early(bench: Bench) -> Finding:
    environment = bench.make()
    name = "step before reset"
    try:
        environment.step(Reply("", problem="no <answer>"))
    except EnvError as error:
        return passed(name, f"EnvError: {error}")
    except Exception as error:  # anybody's code, and its failure is the finding
        seen = f"{type(error).__name__}: {error}"
        return failed(name, seen, "an EnvError", "raise EnvError if no episode is running")
    finally:
        environment.close()
    return failed(name, "an answer", "an EnvError", "raise EnvError if no episode is running")


def _step_too_late(bench: Bench) -> Finding:
    environment, name = bench.environment, "step after the end"
    advice = "keep a flag that step sets at the end, and raise EnvError where it is set"
    for _ in play_at_random(environment, seed_of("train", 0), Random(1)):
        pass
    try:
        environment.step(Reply("", problem="no <answer>"))
    except EnvError as error:
        return passed(name, f"EnvError: {error}")
    except Exception as error:  # anybody's code, and its failure is the finding
        return failed(name, f"{type(error).__name__}: {error}", "an EnvError", advice)
    return failed(name, "an answer", "an EnvError", advice)


def _reset_in_the_middle(bench: Bench) -> Finding:
    environment, name, seed = bench.environment, "reset in the middle", seed_of("train", 1)
    before = reset(environment, seed)
    step(environment, reply_with(environment, draw_actions(environment, Random(2))))
    after = reset(environment, seed)
    if environment.replays and before.text != after.text:
        return failed(
            name,
            f"the same seed starts with {after.text[:80]!r}, at first with {before.text[:80]!r}",
            "the same first observation",
            "set everything up anew in reset",
        )
    return passed(name, "the episode starts anew")
