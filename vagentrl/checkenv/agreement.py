"""Checks that the state, what the agent sees and the pictures agree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, get_args

from vagentrl.checkenv.bench import Bench, draw_actions, frame_of, reply_with, reset, step
from vagentrl.checkenv.report import Checked, Finding, failed, passed, unchecked
from vagentrl.environment import ActionEnvironment, Environment, seed_of
from vagentrl.errors import ConfigError, EnvError, JudgeError
from vagentrl.formats import Grounding
from vagentrl.pictures import check_unchanged, digest
from vagentrl.rollout.workers import state_of
from vagentrl.types import Claim, Observation, Representation, State

if TYPE_CHECKING:
    from PIL.Image import Image

EPISODES = 8
TURNS = 40
FEW = 4
"""States that may look the same by chance."""
SIDES = (8, 4096)
"""Fewest and most pixels of a side of an image."""

Moment = tuple[Observation, State | None]


def check_agreement(bench: Bench) -> Checked:
    """State, text and pictures, along episodes of random play."""
    episodes = [
        list(_moments(bench.environment, seed_of("train", index)))
        for index in bench.within_time(range(EPISODES), share=0.5)
    ]
    return Checked(
        (
            _state(bench.environment, episodes),
            _state_follows_observation(bench.environment, episodes),
            *_claims(bench, episodes),
            _pictures(episodes),
            _frames(bench.environment),
        )
    )


def _moments(environment: Environment, seed: int) -> Iterator[Moment]:
    rng = Random(seed)
    yield _seen(reset(environment, seed)), state_of(environment)
    for _ in range(TURNS):
        result = step(environment, reply_with(environment, draw_actions(environment, rng)))
        yield _seen(result.observation), state_of(environment)
        if result.terminated or result.truncated:
            return


def _seen(observation: Observation) -> Observation:
    """The observation, once its pictures are known, so that a change to them is seen later."""
    for image in observation.images:
        digest(image)
    return observation


def _state(environment: Environment, episodes: list[list[Moment]]) -> Finding:
    name = "state"
    states = [state for episode in episodes for _, state in episode]
    if all(state is None for state in states):
        return unchecked(name, "state() is None")
    for state in states:
        if state is None:
            advice = "return a state in every turn, or never"
            return failed(name, "None in some turns, a State in others", "a State", advice)
        try:
            json.loads(state.structured)
        except ValueError as error:
            seen = f"structured is {state.structured[:80]!r} ({error})"
            return failed(name, seen, "JSON", "write it with json.dumps")
        empty = [part for part, text in vars(state).items() if not text.strip()]
        if empty:
            advice = "describe the state in all three representations"
            return failed(name, f"{empty[0]} is empty", "a description", advice)
    if state_of(environment) != state_of(environment):
        advice = "let state() only read, and sort what has no order"
        return failed(name, "two calls give different states", "the same state", advice)
    return passed(name, f"{len(set(states))} different ones in {len(states)} turns")


def _state_follows_observation(environment: Environment, episodes: list[list[Moment]]) -> Finding:
    name = "state and observation"
    if isinstance(environment, ActionEnvironment) and environment.show_turns_left:
        return unchecked(name, "show_turns_left changes every observation")
    changes = 0
    for episode in episodes:
        for (before, state), (after, next_state) in pairwise(episode):
            if state is None or next_state is None:
                return unchecked(name, "state() is None")
            if _view(before) == _view(after):
                continue
            changes += 1
            if state == next_state:
                return failed(
                    name,
                    f"the observation changes from {before.text[:60]!r} to {after.text[:60]!r}, "
                    "the state does not",
                    "a state that changes when the observation does",
                    "put what the agent sees into state()",
                )
    return passed(name, f"the state changed in all {changes} turns in which the observation did")


def _view(observation: Observation) -> tuple[object, ...]:
    return (observation.text, *(image.tobytes() for image in observation.images))


def _claims(bench: Bench, episodes: list[list[Moment]]) -> Iterator[Finding]:
    states = [s for episode in episodes for _, s in (episode[0], episode[-1]) if s is not None]
    for representation in get_args(Representation):
        name = f"claims, {representation}"
        if not states:
            yield unchecked(name, "state() is None")
        elif bench.judge is None:
            yield unchecked(name, "no exact judge is installed")
        else:
            yield _claim(bench, representation, states, name)


def _claim(bench: Bench, representation: Representation, states: list[State], name: str) -> Finding:
    """Write every state as a claim, read it back and let the exact judge compare it."""
    format = Grounding(representation, bench.environment.format.action_separator)
    assert bench.judge is not None
    for state in states:
        truth = getattr(state, representation)
        try:
            written = format(format.write(("x",), observation=state)).observation_claim
            claim = Claim("observation", written or "", representation, state)
            verdict = asyncio.run(bench.judge(claim))
        except (ConfigError, JudgeError) as error:
            advice = "leave the reply format's tags out of states"
            return failed(name, f"{truth[:80]!r}: {error}", "a state that can be claimed", advice)
        if verdict.score != 1.0:
            return failed(
                name,
                f"the claim {truth[:80]!r} scores {verdict.score:.2f} ({verdict.reason})",
                "1.0 for the state itself",
                "name no field twice; put one fact in a clause; give rows of a grid one length",
            )
    return passed(name, f"{len(states)} states score 1.0 when claimed")


def _pictures(episodes: list[list[Moment]]) -> Finding:
    name = "images"
    images = [image for episode in episodes for o, _ in episode for image in o.images]
    if not images:
        return unchecked(name, "observations have none")
    problem = _problem(images) or _repainted(images) or _constant(episodes)
    if problem is not None:
        return failed(name, *problem)
    sizes = {image.size for image in images}
    told = ", ".join(f"{width} × {height}" for width, height in sorted(sizes)[:4])
    return passed(name, f"{len(images)} of {told} pixels, {images[0].mode}")


def _problem(images: list[Image]) -> tuple[str, str, str] | None:
    """What is seen, wanted and advised if the images cannot be right."""
    for image in images:
        if image.mode != "RGB":
            return f"its mode is {image.mode}", "RGB", "image.convert('RGB')"
        if not SIDES[0] <= min(image.size) <= max(image.size) <= SIDES[1]:
            least, most = SIDES
            return f"its size is {image.size}", f"sides of {least} to {most} pixels", "rescale it"
    if all(len(set(image.getextrema())) == 1 and _is_plain(image) for image in images):
        return (
            "all are of a single colour",
            "a picture of the state",
            "see whether the renderer works without a display (headless, EGL)",
        )
    return None


def _repainted(images: list[Image]) -> tuple[str, str, str] | None:
    for image in images:
        try:
            check_unchanged(image)
        except EnvError:
            return (
                "a picture of an earlier turn was painted over",
                "pictures that stay as they were shown",
                "return another image every time, for instance image.copy()",
            )
    return None


def _constant(episodes: list[list[Moment]]) -> tuple[str, str, str] | None:
    moments = [moment for episode in episodes for moment in episode if moment[0].images]
    views = {tuple(map(digest, observation.images)) for observation, _ in moments}
    states = {state for _, state in moments}
    if len(views) > 1 or len(states) < FEW:
        return None
    seen = f"the same in {len(states)} different states"
    return seen, "a picture of the state", "draw the current state in every observation"


def _is_plain(image: Image) -> bool:
    return all(low == high for low, high in image.getextrema())  # pyright: ignore


def _frames(environment: Environment) -> Finding:
    name, rng, frames = "frame", Random(0), []
    reset(environment, seed_of("train", 0))
    for _ in range(10):
        frames.append((frame_of(environment), state_of(environment)))
        if frames[0][0] is None:
            return unchecked(name, "frame() is None, so there are no pictures to look at")
        result = step(environment, reply_with(environment, draw_actions(environment, rng)))
        if result.terminated or result.truncated:
            break
    pictures = [frame for frame, _ in frames if frame is not None]
    problem = _problem(pictures)
    if problem is not None:
        return failed(name, *problem)
    states = {state for _, state in frames}
    if len(states) > 1 and len({picture.tobytes() for picture in pictures}) == 1:
        seen = f"the same picture of {len(states)} different states"
        return failed(name, seen, "a picture of the state", "draw the current state in frame()")
    return passed(name, "{} × {} pixels".format(*pictures[0].size))
